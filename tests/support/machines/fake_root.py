"""A file system like that of the kernel, with the numbers that a test sets."""


class FakeRoot:
    """Writes the files of ``/proc`` and ``/sys`` below a temporary directory."""

    def __init__(self, path):
        self.path = path

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def cores(self, *rows):
        """Sets idle, irq, softirq and steal of cores 0, 1, ..., in ticks."""
        lines = ["cpu  1 2 3 4 5 6 7 8 0 0"]
        for cpu, (idle, irq, softirq, steal) in enumerate(rows):
            lines.append(f"cpu{cpu} 5 5 5 {idle} 0 {irq} {softirq} {steal} 0 0")
        self.write("proc/stat", "\n".join([*lines, "intr 5 0", "ctxt 7", ""]))

    def thread(self, pid, tid, run_sec, delay_sec=0):
        """Sets the totals of one thread."""
        text = f"{round(run_sec * 1e9)} {round(delay_sec * 1e9)} 3\n"
        self.write(f"proc/{pid}/task/{tid}/schedstat", text)

    def process(self, pid, user, system, name="a) b (c"):
        """Sets the totals of one process in ticks; its name can have parentheses."""
        fields = " ".join(["S", *"0" * 10, str(user), str(system), *"0" * 20])
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) {fields}\n")
