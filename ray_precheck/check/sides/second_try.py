"""The second try: other inputs for a call whose generated ones made both sides raise.

Comes in: a `Job`. Goes out: the same one, or one with safer inputs. Called by the checker, also where
only the device's half of a check is done: then the half of the bench is told by `Measured.safer`
that it must make safer inputs, too.
"""

from dataclasses import replace

from ray_precheck.check.job import Job
from ray_precheck.datagen.generate import GeneratedTensors, build_call

IN_VAIN = "also with safer inputs"


def with_safer_inputs(job: Job) -> Job:
    """Return a job that can be judged where safer inputs make it one, else the job itself.

    Both sides are run: the device always, the bench only where the device raised, and not because
    it lacks a kernel. Captured and saved tensors are never replaced. Of backward only the forward
    pass in it counts.

    Raises:
        NotCheckable: the bench does not have the API.
        OutOfMemory: an allocation failed.
    """
    failure = job.measured.error
    if not isinstance(job.source, GeneratedTensors) or failure is None or failure.lacks_kernel:
        return job
    if not job.source.may_be_safer or job.bench.execution is not None:
        return job
    source = job.source.safer(job.record, failure.text)
    call = build_call(job.record, source)
    other = Job(job.payload, job.record, call, source, job.sides)
    if other.measured.outputs is None and other.bench.execution is None:
        text = f"{failure.text} ({IN_VAIN})"
        job.measured = replace(job.measured, error=replace(failure, text=text))
        return job
    other.measured = replace(other.measured, safer=failure.text)
    return other
