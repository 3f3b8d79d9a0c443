"""Words of command lines."""


def overridden(words, *more):
    """Returns words and more, without ``--name=value`` that more gives anew."""
    repeatable = {"", "--option", "--count", "--vary", "--write"}
    given = {_name_of(word) for word in more} - repeatable
    return (*(word for word in words if _name_of(word) not in given), *more)


def _name_of(word):
    name, _, value = word.partition("=")
    if name == "--set":
        return f"--set={value.partition('=')[0]}"
    return name.replace("--no-", "--") if word.startswith("--") else ""


def smoke_sweep(options: str) -> tuple[str, ...]:
    """Returns the words of a smoke sweep of resnet50 with options."""
    return ("sweep", "--workload=resnet50", "--preset=smoke", *options.split())
