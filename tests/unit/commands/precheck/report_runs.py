"""Results of calls, and the summary of a run that has them."""

from ray_precheck.commands.precheck.summary import Summary, summarise
from ray_precheck.replay.job import done_of
from ray_precheck.schema.result import Metrics, Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.store.journal import Journal
from ray_precheck.store.tables import RunFiles


def summary_of(files: RunFiles, *results: TaskResult) -> Summary:
    """The summary of a run with these results."""
    journal = Journal.open(files.result, files.details)
    journal.append([done_of(result) for result in results])
    journal.close()
    return summarise(files)


def compared(
    name: str,
    errors: list[float] | None = None,
    forward: Verdict = Verdict.PASS,
    backward: Verdict = Verdict.NONE,
) -> TaskResult:
    """A result whose outputs have these largest absolute errors."""
    checks = tuple(
        OutputCheck(
            name=f"{name}.forward.output.{position}",
            bench_dtype="torch.float64",
            tested_dtype="torch.float32",
            shape="(2, 3)",
            metrics=Metrics(0.5, error, 2 * error),
            verdict=forward,
        )
        for position, error in enumerate(errors or [])
    )
    return TaskResult(0, name, Outcome.COMPLETED, forward, backward, checks=checks)


def output(
    name: str, cosine: float, max_abs_err: float, max_rel_err: float, message: str = ""
) -> TaskResult:
    """A call with one output, or gradient, that is in error."""
    metrics = Metrics(cosine, max_abs_err, max_rel_err)
    check = OutputCheck(name, "Float64", "Float32", "(4,)", metrics, Verdict.ERROR, message)
    call = name.rsplit(".", 3)[0]
    return TaskResult(0, call, Outcome.COMPLETED, Verdict.ERROR, Verdict.NONE, checks=(check,))


def wrong(name: str, message: str = "forward.output.0: far off") -> TaskResult:
    """A call whose only output is infinitely far off."""
    metrics = Metrics(None, float("inf"), float("inf"))
    check = OutputCheck(
        f"{name}.forward.output.0", "Float64", "Float32", "()", metrics, Verdict.ERROR, message
    )
    return TaskResult(
        1, name, Outcome.COMPLETED, Verdict.ERROR, Verdict.NONE, message, checks=(check,)
    )
