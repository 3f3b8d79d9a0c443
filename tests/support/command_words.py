"""Words of command lines."""


def overridden(words, *more):
    """Returns words and more, without ``--name=value`` that more gives anew."""
    given = {word.partition("=")[0].replace("--no-", "--") for word in more}
    repeatable = {"--option", "--count", "--vary", "--write"}
    kept = (
        word
        for word in words
        if word.partition("=")[0] not in given - repeatable or not word.startswith("--")
    )
    return (*kept, *more)


def smoke_sweep(options: str) -> tuple[str, ...]:
    """Returns the words of a smoke sweep of resnet50 with options."""
    return ("sweep", "--workload=resnet50", "--preset=smoke", *options.split())
