"""The one error a user sees as a sentence. Knows no Slurm, no torch, no configuration."""


class HpcddpError(Exception):
    """Wrong usage, configuration or environment; the CLI prints `message` and exits with 2.

    `code` is a stable word for programs (`bad_value`, `not_in_step`, ...); the message says what
    was found, what was needed and what to type.
    """

    def __init__(self, message: str, code: str = "bad_value") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ConfigError(HpcddpError):
    """A configuration value or key is wrong, wherever it came from."""

    def __init__(self, message: str, code: str = "bad_config") -> None:
        super().__init__(message, code)


class SubmissionFailed(Exception):
    """sbatch refused a job; the message is Slurm's. The CLI exits with 1.

    `maybe_sent` where no answer came: Slurm may have taken the job all the same.
    """

    def __init__(self, message: str, *, maybe_sent: bool = False) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent
