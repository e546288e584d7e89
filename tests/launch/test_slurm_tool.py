"""An order to Slurm either worked, or there are words for why it did not."""

import pytest

from hpcddp.launch.slurm_tool import tell


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sh", "-c", "echo fine >&2"], None),
        (["sh", "-c", "echo error: no such job >&2; exit 1"], "error: no such job"),
        (["sh", "-c", "echo on stdout; exit 1"], "on stdout"),
        (["sh", "-c", "exit 9"], "sh exited with 9"),
        (["no-such-tool"], "no-such-tool cannot be run: No such file or directory"),
        (["sleep", "60"], "sleep gave no answer within 1 s"),
    ],
)
def test_what_went_wrong_is_never_empty(words, problem):
    assert tell(words, timeout_s=1 if words[0] == "sleep" else 100) == problem
