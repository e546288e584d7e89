"""An order to Slurm either worked, or there are words for why it did not."""

import pytest

from hpcddp.launch.slurm_tool import is_silence, tell


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


@pytest.mark.parametrize(
    ("said", "silent"),
    [
        ("Unable to contact slurm controller (connect failure)", True),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", True),
        ("Unexpected message received for job 52", True),  # to `scontrol requeue` and `update`
        ("scontrol gave no answer within 60 s", True),
        ("Requested operation is presently disabled for job 52", False),
        ("Job is pending execution for job 52", False),
    ],
)
def test_a_controller_that_has_not_answered_has_not_refused(said, silent):
    assert is_silence(said) is silent
