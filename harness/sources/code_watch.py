"""Whether the code of a study changes while it is measured.

A sweep takes minutes to hours, and starts new processes all the time. What they run is
what is on disk then: an edit in between would mix two programs in one figure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.command import identity, repository
from harness.errors import PlanError
from harness.sources import code_digest, plugin_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.records.models import Plan, TrialSpec

_ROOT: Final = Path(__file__).resolve().parents[2]


class CodeWatch:
    """The code of a study, to be asked for before and after each of its trials."""

    def __init__(
        self,
        plan: Plan,
        *,
        folders: Mapping[str, Path],
        left_out: Sequence[Path],
        root: Path = _ROOT,
    ) -> None:
        """Remembers how the code is now."""
        self._plan, self._left_out, self._root = plan, left_out, root
        self._folder = None if folders else Path.cwd()
        self._stamps = {} if plan.program_code else _stamps(root)
        self._found = ""

    def changed(self) -> str:
        """Returns what differs from the plan, or "".

        Once it has differed it stays so, since trials have run meanwhile.
        """
        if not self._found:
            if self._plan.program_code:
                self._found = self._of_program()
            else:
                self._found = self._of_our_own()
        return self._found

    def _of_program(self) -> str:
        if self._folder is None:
            return ""
        record = self._plan.trials[0].spec.program
        assert record is not None
        source = repository.find(self._folder, self._left_out)
        now = identity.of_program(record.command, self._folder, source, self._left_out)
        planned = self._plan.program_code[""]
        if "python" in planned and "python" not in now:
            raise PlanError(
                f"the interpreter of --command {record.command!r} does not say its"
                " version any more, so the code that is measured is unknown; start it"
                " by hand, and repeat the command when it answers"
            )
        # What the program writes beside itself is no change of it, if it is new.
        made = () if source is None else source.untracked
        for name in made:
            key = identity.key_of_change(name)
            if key not in planned:
                now.pop(key, None)
        if source is None:
            now = {
                name: text
                for name, text in now.items()
                if name in planned or not name.startswith("file ")
            }
        return next(iter(identity.differences(planned, now)), "")

    def _of_our_own(self) -> str:
        stamps = _stamps(self._root)
        if stamps != self._stamps:
            sources = code_digest.Sources(root=self._root)
            for spec in self._specs():
                now = code_digest.of_sources(spec.workload, spec.backend, sources)
                if now != spec.code_digest:
                    return (
                        f"code of backend {spec.backend} (digest"
                        f" {spec.code_digest!r} / {now!r})"
                    )
            self._stamps = stamps  # comments, or code that measures nothing
        return plugin_code.difference(self._plan)

    def _specs(self) -> list[TrialSpec]:
        """Returns one specification of each code of this tree."""
        found = {
            (trial.spec.workload, trial.spec.backend): trial.spec
            for trial in self._plan.trials
            if not trial.spec.revision
        }
        return [found[key] for key in sorted(found)]


def _stamps(root: Path) -> dict[str, tuple[int, int]]:
    """Returns time and size of each source file: quick to read, and enough to look."""
    try:
        paths = code_digest.Sources(root=root).paths
        facts = {module: path.stat() for module, path in paths.items()}
    except OSError as error:
        raise PlanError(
            f"cannot look at {str(error.filename or root)!r}, which is part of the"
            f" code that is measured: {error.strerror}; repeat the command when it can"
            " be read"
        ) from error
    return {module: (of.st_mtime_ns, of.st_size) for module, of in facts.items()}
