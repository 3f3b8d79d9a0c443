"""A number that a program prints is read whole, or refused."""

import re
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.command.reader import OutputReader, ReadingError
from results import Program


def read(option, *lines):
    reader = OutputReader(Program(command="own", metric=option, unit="images"))
    text = "".join(f"{line}\n" for line in lines).encode()
    found = [reading.value for reading in reader.feed(0, text, 1)]
    reader.check_missed()
    return found


def grouped(digits, separator, sizes=(3,)):
    groups, left, index = [], digits, 0
    while left:
        size = sizes[min(index, len(sizes) - 1)]
        groups.append(left[-size:])
        left, index = left[:-size], index + 1
    return separator.join(reversed(groups))


def clock(seconds, form):
    whole = int(seconds)
    part = str(seconds % 1)[1:] if seconds % 1 else ""
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return form.format(h=hours, m=minutes, s=rest, f=part)


# Each spells a value of at least 1000.25; it is read, or is also right to refuse.
READ = {
    "plain": lambda w, f: f"{w}.{f}",
    "plus": lambda w, f: f"+{w}.{f}",
    "exponent": lambda w, f: f"{w}.{f}e0",
    "exponent of ten": lambda w, f: f"{w}{f}E-{len(f)}",
    "leading zero": lambda w, f: f"0{w}.{f}",
    "commas": lambda w, f: f"{grouped(w, ',')}.{f}",
    "Indian": lambda w, f: f"{grouped(w, ',', (3, 2))}.{f}",
    "underscores": lambda w, f: f"{grouped(w, '_')}.{f}",
    "apostrophes": lambda w, f: f"{grouped(w, chr(39))}.{f}",
    "typographic": lambda w, f: f"{grouped(w, chr(0x2019))}.{f}",
    **{
        f"space {ord(one):x}": lambda w, f, one=one: f"{grouped(w, one)}.{f}"
        for one in "\u00a0\u2007\u2009\u202f\u2006\u3000"
    },
    "seconds": lambda w, f: f"{w}.{f}s",
    "seconds apart": lambda w, f: f"{w}.{f} s",
    "milliseconds": lambda w, f: f"{Decimal(f'{w}.{f}') * 1000:f}ms",
    "milliseconds apart": lambda w, f: f"{Decimal(f'{w}.{f}') * 1000:f} ms",
    "microseconds": lambda w, f: f"{Decimal(f'{w}.{f}') * 1000000:f}us",
    "h:mm:ss": lambda w, f: clock(Decimal(f"{w}.{f}"), "{h}:{m:02}:{s:02}{f}"),
    "h m s": lambda w, f: clock(Decimal(f"{w}.{f}"), "{h}h{m}m{s}{f}s"),
}
# None of these may be read as anything but what stands there; all may be refused.
UNCLEAR = {
    "decimal comma": lambda w, f: f"{w},{f}",
    "commas alone": lambda w, f: grouped(w, ","),
    "points": lambda w, f: f"{grouped(w, '.')},{f}",
    "a space": lambda w, f: f"{grouped(w, ' ')}.{f}",
    "a space and a comma": lambda w, f: f"{grouped(w, ' ')},{f}",
    "Arabic digits": lambda w, f: "".join(chr(0x660 + int(d)) for d in w) + f".{f}",
    "wide digits": lambda w, f: "".join(chr(0xFF10 + int(d)) for d in w) + f".{f}",
    "mixed digits": lambda w, f: f"{w}\u0665.{f}",
    "two points": lambda w, f: f"{w}.{f}.3",
    "hexadecimal": lambda w, _f: f"0x{w}",
    "binary": lambda w, _f: f"0b1{w}",
    "a date": lambda w, _f: f"{w}-11-28",
    "a date of slashes": lambda w, _f: f"{w}/11/28",
    "a range": lambda w, f: f"{w}-{w}.{f}",
    "a fraction": lambda w, _f: f"{w}/3",
    "minutes": lambda w, f: f"{w}:{int(f) % 60:02}",
    "percent": lambda w, f: f"{w}.{f}%",
    "percent apart": lambda w, f: f"{w}.{f} %",
    "times ten": lambda w, f: f"{w}.{f}x10^3",
    "times a power": lambda w, f: f"{w}.{f} \u00d7 10^3",
    "superscript": lambda w, _f: f"{w}\u00b3",
    "half": lambda w, _f: f"{w}\u00bd",
    "Fortran": lambda w, f: f"{w}.{f}d3",
    "cut exponent": lambda w, f: f"{w}.{f}e",
    "point in exponent": lambda w, f: f"{w}.{f}e3.5",
    "thousands k": lambda w, f: f"{w}.{f}k",
    "an unknown unit": lambda w, f: f"{w}.{f}parsec",
    "days": lambda w, f: f"{w}.{f}d",
    "two parts": lambda w, _f: f"{w} min 30 s",
    "days and a clock": lambda w, _f: f"{w} days, 1:02:03",
    "below zero": lambda w, f: f"-{w}.{f}",
    "minus sign": lambda w, f: f"\u2212{w}.{f}",
    "bad groups": lambda w, f: f"{w},1,{f}",
    "ellipsis": lambda w, _f: f"{w}...",
    "a product": lambda w, _f: f"{w}*3",
    "infinity": lambda _w, _f: "inf",
    "no number": lambda _w, _f: "nan",
    "groups of a quote and a comma": lambda w, f: f"{w}'123,{f}",
}
TRUTH = {
    "decimal comma": lambda w, f: Decimal(f"{w}.{f}"),
    "commas alone": lambda w, _f: Decimal(w),
    "points": lambda w, f: Decimal(f"{w}.{f}"),
    "a space": lambda w, f: Decimal(f"{w}.{f}"),
    "a space and a comma": lambda w, f: Decimal(f"{w}.{f}"),
    "Arabic digits": lambda w, f: Decimal(f"{w}.{f}"),
    "wide digits": lambda w, f: Decimal(f"{w}.{f}"),
    "thousands k": lambda w, f: Decimal(f"{w}.{f}") * 1000,
    "two parts": lambda w, _f: Decimal(w) * 60 + 30,
}
DELIMITERS = [
    *("", " ", ", ", "\t", ")", "]", "}", '"', "'", "; ", ";", "|", " | ", ". "),
    *("\u2019", "/", "/step", "`", "!", " at", " (3)", ",loss", ", 3", "\t128"),
    *("\\n", " 12"),
]
PATTERNS = (
    *("took ([0-9.]+)", "took ([0-9]+)", r"took (\S+)", "took (.*)", r"took.*? (\d+)"),
    *("([0-9.]+)$", "([0-9.]+) ?m?s", "took.*?([0-9.]+)s?$", "took.*[ ,:]([0-9.]+)"),
    *("took.*([0-9.]+)", r"([0-9.]+)\D*$", "took [^ ]*?([0-9]+) ?s"),
)


@settings(max_examples=800, deadline=None)
@given(
    st.sampled_from([*READ, *UNCLEAR]),
    st.integers(1000, 99_999_999) | st.integers(1, 999_999).map(lambda n: n * 1000),
    st.sampled_from(["25", "5", "125", "0625"]),
    st.sampled_from(DELIMITERS),
    st.sampled_from(PATTERNS),
)
@example("a space", 15_000_000, "25", "", "([0-9.]+)$")
@example("a space", 1234, "5", "", PATTERNS[0])
@example("decimal comma", 1000, "125", "", PATTERNS[1])
def test_a_number_is_read_whole_or_refused(
    kind: str, whole: int, fraction: str, delimiter: str, pattern: str
) -> None:
    word = str(whole)
    spelled = {**READ, **UNCLEAR}[kind](word, fraction)
    line = f"took {spelled}{delimiter}"
    truth = TRUTH.get(kind, lambda _w, _f: None)(word, fraction)
    if kind in READ:
        truth = Decimal(f"{word}.{fraction}")
    try:
        found = read(f"step_time={pattern}", line)
    except ReadingError:
        match = re.search(pattern, line)
        is_led = match is not None and match.start(1) == len("took ")
        cut = ("/", "/step", "\u2019", "'", " 12")
        is_clear = kind in READ and is_led and delimiter not in cut
        assert not is_clear, line
        return
    match = re.search(pattern, line)
    if found and match and match.start(1) < len("took ") + len(spelled):
        assert [float(truth or "nan")] == pytest.approx(found, rel=1e-12), line


@pytest.mark.parametrize(
    ("option", "line", "value"),
    [
        ("step_time[comma]=took ([0-9]+)", "took 1,9 s", 1.9),
        ("step_time[thousands]=took ([0-9]+)", "took 1,234", 1234),
        ("step_time[columns]=took ([0-9]+)", "took 1,234", 1),
        ("step_time[spaces]=took ([0-9]+)", "took 1 234.5 s", 1234.5),
        ("step_time[ms]=took ([0-9]+)", "took 250", 0.25),
        ("step_time[m:ss]=took ([0-9]+)", "took 1:30", 90),
        ("step_time[comma, ms]=took ([0-9]+)", "took 0,5", 0.0005),
        ("step_time=took ([0-9.]+)", "took 1:05.3 of 9", 65.3),
        ("step_time=, ([0-9.]+)it/s", "<00:00, 4.00it/s]", 0.25),
        ("throughput[k]=rate ([0-9.]+)", "rate 1.5", 1500),
        ("throughput=rate ([0-9.]+)", "rate 1.2 kimg/s", 1200),
        ("throughput=rate ([0-9.]+)", "rate 600 images/min", 10),
        ("throughput=rate ([0-9.]+)", "rate 7200 images per hour", 2),
        ("throughput=([0-9.]+)it/s", "8/8 [00:12<00:00,  2.00s/it]", 0.5),
        ("throughput=<\\S+ +([0-9.]+)", "8/8 [00:12<00:00, 2.00s/it]", 0.5),
        ("throughput=([0-9.]+)imgs", "640imgs", 640),
        ("throughput=^\\d+ ([0-9.]+)", "3 640.5", 640.5),
        ("throughput=^[0-9]+,([0-9.]+)", "3,12.5,128", 12.5),
        ("throughput=([0-9.]+) /s", "run-1: 7,12.5 /s", 12.5),
        ("throughput=s: ([0-9.e+]+)", "s: 1.2e+05", 1.2e5),
        ("throughput=s: ([0-9]+)", "s: 0.41", 0.41),
        ("throughput=^[0-9]+,([0-9.]+)", "3,640.5,128", 640.5),
    ],
)
def test_what_is_declared_or_printed_says_how_a_number_is_meant(option, line, value):
    assert [value] == pytest.approx(read(option, line))


REFUSED = [
    ("step_time=took ([0-9.]+)", "took 1,9 s", "'1,9', which may mean two things"),
    ("throughput=rate ([0-9.]+)", "rate 12ms", "'12ms', which is a time, not a rate"),
    ("step_time=took ([0-9.]+)", "took 12 img/s", "which is a rate, not a time"),
    ("step_time[ms]=took ([0-9.]+)", "took 5 s", "which is not in ms, as was declared"),
    ("throughput=s:.*([0-9.]+)", "s: 1234", "'1234', of which the pattern"),
    ("throughput=s: (\\w+)", "s: many", "'many', which is not a number; put the group"),
    ("throughput=s: (\\w+)", "s: nan", "'nan', which is not a rate or a time; they"),
    ("throughput=s: ([0-9.]+)", "s: 12,345 now", "'12,345', which may mean two thi"),
    ("throughput=^([0-9]+),", "32,128", "'32,128', which may mean two things"),
    ("throughput=([0-9.]+) /s", "at -3 /s", "'-3', which is below zero"),
    ("throughput=s: [0-9.e]+\\+?([0-9]+)", "s: 1.5e+05", "'1.5e.05', of which the p"),
    ("throughput=([0-9.]+)", "loading resnet50", "takes '50' alone|part of a word"),
    ("throughput=([0-9.]+) img", "step 8 640.5 img", "'8 640.5'"),
    ("throughput=rate ([0-9.]+)", "rate " + "1" * 400, "which is too large"),
    ("throughput=rate ([0-9.]+)", " " * 19_990 + "rate 12345678", "not a number that"),
]


@pytest.mark.parametrize(("option", "line", "part"), REFUSED)
def test_a_refusal_names_the_token_and_shows_the_place(option, line, part):
    with pytest.raises(ReadingError) as caught:
        read(option, line)

    assert re.search(part, str(caught.value))
    assert "\n" not in str(caught.value)
    shown, caret = caught.value.detail.splitlines()
    assert set(caret.strip()) == {"^"}
    assert shown[caret.index("^")] != " "


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**20), st.sampled_from(["", "_", ",", "\u202f"]))
def test_a_count_is_exact_or_refused(value, separator):
    spelled = grouped(str(value), separator) if separator else str(value)
    count = ("bytes=sent ([0-9]+)",)
    program = Program(command="own", metric="wall", unit="images", counts=count)
    reader = OutputReader(program)
    try:
        assert [] == [*reader.feed(0, f"sent {spelled}\n".encode(), 1)]
    except ReadingError:
        assert value > 2**53 or separator == ","
        return
    (found,) = reader.counts()
    assert Decimal(str(value)) == Decimal(found["value"])


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(
        [
            *("nan", "inf", "-inf", "-", "--", "", "n/a", "None", "NaN", "\u221e"),
            *("-5", "\uff15"),
        ]
    ),
    st.sampled_from(
        [("images/s: ([0-9.]+)", "images/s: {}"), ("([0-9.]+) img/s", "at {} img/s")]
    ),
    st.integers(1, 4),
)
def test_lines_without_their_number_are_failures(bad, where, number):
    pattern, form = where
    if not bad and not pattern.startswith("images"):
        return
    lines = [form.format(3 + index) for index in range(5)]
    for index in range(number):
        lines.insert(2 * index, form.format(bad).rstrip())
    with pytest.raises(ReadingError) as caught:
        read(f"throughput={pattern}", *lines)

    assert f"{number} of {5 + number} lines" in str(caught.value) or "-5" in lines[0]


def test_other_lines_are_no_failures():
    lines = ["rate limit on", "", "rate: improved", "rate 3", "a rate of nan"]
    assert [3.0] == read("throughput=rate ([0-9.]+)", *lines)
    bar = ["0/8 [00:00<?, ?it/s]", "1/8 [00:01<00:07, 1.00it/s]"]
    assert [1.0] == read("throughput=([0-9.]+)it/s", *bar)
