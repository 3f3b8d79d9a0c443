"""Pictures that a run made are on its page; files of the reader never are."""

import pytest

from reports.page.sections import learning
from reports.view.view import view_store
from results.records.models import Budget, BudgetUnit


@pytest.mark.parametrize(
    ("what", "why_not"),
    [
        ("link", "it is a symbolic link"),
        ("text", "it is not a PNG picture"),
        ("large", f"{2**30} bytes, at most {learning.MOST_PICTURE_BYTES} are read"),
    ],
)
def test_what_is_no_picture_is_not_published(tmp_path, synthetic, what, why_not):
    """A link would put a file of whoever builds the page on it, base64."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    budget = Budget(amount=9, unit=BudgetUnit.STEPS, num_evaluations=1)
    shape = synthetic.Shape(
        backends=("in_graph",), modes=(synthetic.WEAK,), repeats=1, budget=budget
    )
    store = synthetic.make_store(tmp_path / "s", shape)
    path = min(store.root.glob("trials/*/samples_*.png"))
    path.unlink()
    if what == "link":
        path.symlink_to(secret)
    elif what == "text":
        path.write_text("secret")
    else:
        with path.open("wb") as file:
            file.truncate(2**30)

    pictures = [p for run in learning.pictures(view_store(store)) for p in run]

    assert [why_not] == [p.why_not for p in pictures if not p.url]
    assert len(pictures) > 1
