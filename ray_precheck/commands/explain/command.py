"""The command explain: all that is known of one operator.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse

from ray_precheck.options.commands import DEBUG, PASSED, Command, Invocation, given_values
from ray_precheck.options.declared import Option, option_of
from ray_precheck.replay.config import RunConfig


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Print the facts about the operators that the name may mean; return the exit code."""
    from ray_precheck.bench.declared import read_bench_modules
    from ray_precheck.commands.explain.explanation import explain
    from ray_precheck.frameworks.mindtorch.paths import prefer_native

    prefer_native()
    values = given_values(options, RunConfig)
    framework = values.get("framework", "")
    _FRAMEWORK.require(framework)
    modules = read_bench_modules(values.get("bench_modules", ()))
    found = explain(options.api, framework, modules)
    print("\n\n".join(each.text for each in found))
    return PASSED


_FRAMEWORK = option_of(RunConfig, "framework")
_TEXT = "print all that is known of an operator: bench, inputs, limits, why it is not checked"
COMMANDS = (
    Command(
        names={"explain": _TEXT},
        options=(
            Option(
                ("api",),
                "a full name (torch.nn.functional.softmax), or a name or key of a dump (Mint.sin,"
                " Functional.softmax.0.forward)",
                metavar="API",
            ),
            _FRAMEWORK,
            option_of(RunConfig, "bench_modules"),
            DEBUG,
        ),
        execute=_execute,
        epilog="exit codes: 0 printed, 2 no such operator is known",
    ),
)
