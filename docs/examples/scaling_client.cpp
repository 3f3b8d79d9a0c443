// A program in C++ that takes part in a scaling study, by docs/client_protocol.md:
//   g++ -std=c++17 -O2 docs/examples/scaling_client.cpp -o heat
//   python -m harness.conformance -- ./heat
// A step is some sweeps of the heat equation over all cells.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>
using std::string, std::to_string;

[[noreturn]] void fail(const string& why) {
  std::fprintf(stderr, "heat: %s\n", why.c_str());
  std::exit(1);
}
long long now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
// What follows "name": in a flat JSON object, up to a comma or brace; quotes removed.
string field(const string& json, const string& name) {
  size_t at = json.find("\"" + name + "\":");
  if (at == string::npos) fail("no " + name + " in " + json);
  at = json.find_first_not_of(" \"", at + name.size() + 3);
  return json.substr(at, json.find_first_of(",}\"", at) - at);
}

long number(const string& json, const string& name) {
  return std::atol(field(json, name).c_str());
}

struct Harness {  // the socket of the turns; without one, a trial runs alone
  int fd = -1;
  void connect_to(const char* address) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;  // "@" stands for the zero byte of an abstract address
    std::strncpy(name.sun_path + 1, address + 1, sizeof(name.sun_path) - 2);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    socklen_t size = offsetof(sockaddr_un, sun_path) + std::strlen(address);
    if (connect(fd, reinterpret_cast<sockaddr*>(&name), size)) fail("no harness");
  }
  string ask(const string& state, const string& facts = "") {
    string line = "{\"state\": \"" + state + "\", \"rank\": 0" + facts + "}\n";
    if (send(fd, line.data(), line.size(), MSG_NOSIGNAL) < 0) fail("the harness ended");
    string answer;
    for (char c; answer.empty() || answer.back() != '\n'; answer += c)
      if (read(fd, &c, 1) != 1) fail("the harness has closed the connection");
    return answer;
  }
};

struct Run {
  string asked, phase = "launch";
  std::ofstream file;
  std::vector<double> cells = std::vector<double>(1 << 16);
  long index = 0;
  long long start_ns = 0, end_ns = 0;

  void write(const string& kind, const string& facts) {
    file << "{\"kind\": \"" << kind << "\", " << facts << "}\n" << std::flush;
  }
  void enter(const string& next) {
    phase = next;
    write("phase", "\"phase\": \"" + phase + "\", \"ns\": " + to_string(now_ns()));
  }
  void steps(long count) {
    for (; count > 0; --count, ++index) {
      start_ns = now_ns();
      double change = 0;
      for (int sweep = 0; sweep < 8; ++sweep)
        for (size_t i = 1; i + 1 < cells.size(); ++i) {
          double mean = (cells[i - 1] + cells[i] + cells[i + 1]) / 3;
          change += std::fabs(mean - cells[i]);
          cells[i] = mean;
        }
      end_ns = now_ns();
      write("step", "\"phase\": \"" + phase + "\", \"index\": " + to_string(index) +
            ", \"start_ns\": " + to_string(start_ns) + ", \"end_ns\": " +
            to_string(end_ns) + ", \"loss\": " + to_string(change));
    }
  }
};

int main() {
  const char* folder = std::getenv("REPLICATOR_HARNESS_TRIAL");
  if (!folder) fail("start it by a study");
  Run run;
  std::getline(std::ifstream(string(folder) + "/client.json"), run.asked, '\0');
  if (number(run.asked, "protocol") != 3)
    fail("knows version 3 of the protocol, not " + field(run.asked, "protocol"));
  string control = field(run.asked, "control");
  if (control != "none" && control != "twin") fail("has no control " + control);
  run.file.open(string(folder) + "/rank_0.jsonl");
  run.cells[run.cells.size() / 2] = 1;
  run.enter("launch");
  run.write("client", "\"protocol\": 3, \"rank\": 0, \"num_ranks\": 1");
  Harness harness;
  const char* address = std::getenv("REPLICATOR_HARNESS_TURNS");
  string command = "{\"is_alone\": true}";
  if (address) {
    harness.connect_to(address);
    command = harness.ask("imported", ", \"num_ranks\": 1, \"protocol\": 3");
  }
  run.enter("build");
  long long build_ns = now_ns();
  run.write("facts", "\"num_parameters\": 0, \"example_unit\": \"" +
            field(run.asked, "unit") + "\", \"global_batch_size\": " +
            field(run.asked, "global_batch_size"));
  run.enter("first_step");
  run.steps(1);
  run.write("first_step_done", "\"time_to_first_step_sec\": " +
            to_string((run.end_ns - build_ns) / 1e9) + ", \"is_alone\": " +
            field(command, "is_alone"));
  run.enter("warmup");
  long num_left = number(run.asked, "num_warmup_steps") - 1;
  run.steps(num_left - 1);
  if (address) harness.ask("built");
  run.steps(num_left > 0);
  string sec = to_string((run.end_ns - run.start_ns) / 1e9);
  run.enter("measure");
  if (!address) run.steps(number(run.asked, "num_measured_steps"));
  if (address) command = harness.ask("ready", ", \"step_time_sec\": " + sec);
  while (address && field(command, "command") == "turn") {
    string facts = "\"start_ns\": " + to_string(now_ns());
    run.steps(number(command, "num_steps"));
    for (const char* name : {"round_index", "attempt", "num_steps"})
      facts += ", \"" + string(name) + "\": " + field(command, name);
    facts += ", \"end_ns\": " + to_string(run.end_ns);
    run.write("turn", facts);
    command = harness.ask("turn", ", " + facts);
  }
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  run.write("memory", "\"peak_memory_bytes\": " + to_string(used.ru_maxrss * 1024) +
            ", \"method\": \"ru_maxrss\"");
  run.enter("report");
  run.write("done", "\"ns\": " + to_string(now_ns()));
}
