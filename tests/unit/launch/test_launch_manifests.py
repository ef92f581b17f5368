"""The files for Kubernetes, Docker and `ray up`, held against what their readers take."""

import copy
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator
from packaging.specifiers import SpecifierSet
from stand_ins import SCRIPTS

try:
    import tomllib as toml
except ImportError:  # Python 3.10, for which pytest brings it
    import tomli as toml  # type: ignore[no-redef]

pytestmark = pytest.mark.unit
ROOT = SCRIPTS.parent
KUBERAY = json.loads((ROOT / "tests" / "data" / "kuberay" / "ray.io_v1.json").read_text())
MANIFESTS = ["raycluster", "rayjob"]


def manifest(name: str) -> dict[str, Any]:
    found = yaml.safe_load((SCRIPTS / "kubernetes" / f"{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


def cluster_spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifest(name)["spec"]
    return spec.get("rayClusterSpec", spec)  # type: ignore[no-any-return]


def objects(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every object below a node."""
    if isinstance(node, dict):
        yield path
    for key, child in (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    ):
        yield from objects(child, (*path, key))


def at(node: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


# Their keys are names of the user's own.
FREE = {"rayStartParams", "nodeSelector", "limits", "requests", "labels"}


@pytest.mark.parametrize("name", MANIFESTS)
def test_kuberay_knows_every_field(name: str) -> None:
    Draft202012Validator.check_schema(KUBERAY)
    Draft202012Validator(KUBERAY).validate(manifest(name))


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_misspelt_field_is_found_wherever_it_stands(name: str) -> None:
    validator, good = Draft202012Validator(KUBERAY), manifest(name)
    places = [place for place in objects(good) if not (place and place[-1] in FREE)]
    assert len(places) > 40
    for place in places:
        # A copy without YAML's aliases, in which one edit would show at several places.
        bad = json.loads(json.dumps(good))
        fields = at(bad, place)
        first = next(iter(fields), "empty")
        fields[f"{first}z"] = fields.pop(first, "")
        assert not validator.is_valid(bad), place


def test_a_wrong_type_and_a_wrong_quantity_are_found() -> None:
    validator, good = Draft202012Validator(KUBERAY), manifest("raycluster")
    for wrong in (("replicas", "1"), ("minReplicas", None)):
        bad = copy.deepcopy(good)
        bad["spec"]["workerGroupSpecs"][0][wrong[0]] = wrong[1]
        assert not validator.is_valid(bad), wrong
    bad = json.loads(json.dumps(good))
    bad["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"memory": "256 gigabytes"}
    }
    assert not validator.is_valid(bad)


@pytest.mark.parametrize("name", MANIFESTS)
def test_there_is_a_group_for_npus_one_for_gpus_and_one_for_cores(name: str) -> None:
    groups = {group["groupName"]: group for group in cluster_spec(name)["workerGroupSpecs"]}
    limits = {
        kind: set(group["template"]["spec"]["containers"][0]["resources"]["limits"])
        for kind, group in groups.items()
    }
    assert limits == {
        "npu": {"cpu", "memory", "huawei.com/Ascend910"},
        "gpu": {"cpu", "memory", "nvidia.com/gpu"},
        "cpu": {"cpu", "memory"},
    }


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_pod_has_the_token_of_the_secret_and_the_settings_of_the_scripts(name: str) -> None:
    spec = cluster_spec(name)
    assert spec["authOptions"] == {"mode": "token", "secretName": "ray-precheck-token"}
    script = (SCRIPTS / "node.sh").read_text()
    of_scripts = dict(re.findall(r'export (RAY_\w+)="\$\{\1:-(\d+)\}"', script))
    assert len(of_scripts) == 6
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert {item["name"]: item["value"] for item in container["env"]} == of_scripts


def test_the_job_has_the_cluster_of_the_cluster_file() -> None:
    assert cluster_spec("rayjob") == cluster_spec("raycluster")


def test_the_ray_of_the_pods_is_the_one_that_is_pinned() -> None:
    assert f"ray=={cluster_spec('raycluster')['rayVersion']}\n" in _constraints()


def test_ray_up_takes_the_list_of_hosts() -> None:
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    (package,) = spec.submodule_search_locations or []
    schema = json.loads((Path(package) / "autoscaler" / "ray-schema.json").read_text())
    config = yaml.safe_load((SCRIPTS / "autoscaler.yaml").read_text())
    validator = Draft7Validator(schema)
    validator.validate(config)
    assert not validator.is_valid({**config, "start_commands": []})
    assert not validator.is_valid({**config, "setup_commands": "scripts/setup"})
    assert config["provider"]["type"] == "local"
    assert config["max_workers"] == len(config["provider"]["worker_ips"])


def test_ray_up_starts_and_ends_nodes_by_our_scripts_alone() -> None:
    config = yaml.safe_load((SCRIPTS / "autoscaler.yaml").read_text())
    commands = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    assert all(command.startswith("~/ray_precheck/cluster/") for command in commands)
    for command in [*commands, *config["setup_commands"][1:]]:
        script = ROOT / command.split()[0].removeprefix("~/ray_precheck/")
        assert script.stat().st_mode & 0o111, command


def _constraints() -> str:
    return (ROOT / "constraints.txt").read_text()


def _instructions() -> list[list[str]]:
    text = (SCRIPTS / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_the_dockerfile_copies_what_is_there() -> None:
    sources = [s for kind, *rest in _instructions() if kind == "COPY" for s in rest[:-1]]
    assert {"constraints.txt", "pyproject.toml", "ray_precheck"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_dockerfile_installs_by_the_constraints_and_the_pinned_torch_first() -> None:
    steps = _instructions()
    pips = [" ".join(rest) for kind, *rest in steps if kind == "RUN" and "pip" in rest]
    assert len(pips) == 2
    assert all("-c constraints.txt" in pip for pip in pips)
    assert '"${TORCH}"' in pips[0]
    (torch,) = [rest[0].split("=", 1)[1] for kind, *rest in steps if rest[0].startswith("TORCH=")]
    assert f"{torch}\n" in _constraints()


def test_the_dockerfile_names_extras_and_python_of_the_project() -> None:
    project = toml.loads((ROOT / "pyproject.toml").read_text())["project"]
    arguments = dict(rest[0].split("=", 1) for kind, *rest in _instructions() if kind == "ARG")
    assert set(arguments["EXTRAS"].split(",")) <= set(project["optional-dependencies"])
    version = arguments["BASE"].removeprefix("python:").removesuffix("-slim")
    assert version in SpecifierSet(project["requires-python"])
    assert f"(Python {version})" in (ROOT / "constraints.txt").read_text()
