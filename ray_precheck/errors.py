"""The exceptions that users and the other modules see.

    PrecheckError              everything that is reported as one sentence
    +-- UsageError             an option is wrong                         (exit code 2)
    +-- DumpError              the dump cannot be read                    (exit code 2)
    |   +-- NothingToCheckError    it holds no call                       (exit code 4)
    +-- ResumeError            -csv_path cannot be resumed                (exit code 2)
    +-- DeviceError            a device that was asked for is not there   (exit code 2)
    +-- BackendMissingError    a framework is not installed               (exit code 2)
    +-- StoppedError           stopped before the end, resumable          (exit code 3)
    +-- NotCheckable           one API cannot be checked: a SKIP row, never an exit
    +-- OverflowBornError      `capture --overflow raise`: raised in the script that trains

Each takes its message as the only argument, so all of them can be pickled and cross processes.
"""


class PrecheckError(Exception):
    """Base of everything that a user may see as one sentence."""

    exit_code = 2


class UsageError(PrecheckError):
    """An option of the command line, or an argument of `precheck`, is wrong."""


class DumpError(PrecheckError):
    """The dump file cannot be read as a dump."""


class NothingToCheckError(DumpError):
    """The dump is whole and holds nothing that could be checked."""

    exit_code = 4


class ResumeError(PrecheckError):
    """The file named by `-csv_path` is no result CSV, or is the result of another dump."""


class DeviceError(PrecheckError):
    """A device that was asked for does not exist."""


class BackendMissingError(PrecheckError):
    """A framework that the dump needs is not installed."""


class StoppedError(PrecheckError):
    """The run stopped before its end; acknowledged rows are on disk and the run can be resumed."""

    exit_code = 3


class NotCheckable(PrecheckError):
    """One API cannot be checked, with the reason; it becomes a SKIP row and never ends a run."""


class OverflowBornError(PrecheckError):
    """An operator of the captured script made NaN or infinity of finite values."""


class DeviceDied(BaseException):
    """The process in which a backend runs its framework has ended, with this exit code.

    It is no `Exception`, because code that catches the exceptions of an API must not catch it. A
    negative code is that of the signal, as in `subprocess`. It ends the check process in the same way,
    and no user ever sees it.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the process of the device has ended (exit code {exit_code})")
        self.exit_code = exit_code
