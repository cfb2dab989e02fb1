"""Keys of measurements contain the host, the set of CPUs, limits, GPUs and variables."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ndld_flow.machine import gpu_state, host
from ndld_flow.machine.hardware import read_limits
from ndld_flow.machine.host import describe_circumstances, describe_place, fingerprint_machine
from ndld_flow.step import Reuse
from ndld_flow.steps.run_tool import RunTool
from tests.support.recipes import load_recipe
from tests.support.toys import STAMP, Toy, make_toy, started

HEAD = "name: toy\nmodel: model.onnx\n"


@pytest.fixture(autouse=True)
def look_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nothing be remembered that a test changes."""
    monkeypatch.setattr(host, "_REMEMBERED_S", 1e-9)
    monkeypatch.setattr(gpu_state, "_REMEMBERED_S", 1e-9)
    identify = host.identify_host
    identify.cache_clear()
    yield
    identify.cache_clear()


def measuring(folder: Path, reuse: str = "THIS_HOST") -> Toy:
    """Return a toy whose step may be reused as measurements are."""
    step = STAMP.replace("import Context, Result, Step", "import Context, Result, Reuse, Step")
    step = step.replace('libraries = ("onnx",)', f'libraries = ("onnx",)\n    reuse = Reuse.{reuse}')
    return make_toy(folder).write(f"{HEAD}steps_from: [steps/stamp.py]\nsteps: {{first: {{step: stamp}}}}\n", step)


# --- hosts -----------------------------------------------------------------------------------------------------------


def test_a_measurement_of_another_host_is_not_reused(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = measuring(in_folder)
    toy.run()
    assert toy.plan()["first"] == ("reused", "")
    monkeypatch.setattr(host, "identify_host", lambda: "other (0123)")
    reason, detail = toy.plan()["first"]
    assert (reason, "host" in detail, "other (0123)" in detail) == ("machine", True, True)
    assert started(toy.run()[1]) == ["first"]


def test_a_measurement_of_the_same_kind_of_host_is_reused_on_request(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = measuring(in_folder, "SAME_KIND")
    toy.run()
    monkeypatch.setattr(host, "identify_host", lambda: "other (0123)")
    assert toy.plan()["first"] == ("reused", "")


def test_a_host_without_an_identity_reuses_no_measurement(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "identify_host", lambda: "")
    toy = measuring(in_folder)
    toy.run()
    reason, detail = toy.plan()["first"]
    assert reason == "never reused" and "same_kind" in detail
    assert started(toy.run()[1]) == ["first"]


@pytest.mark.parametrize(
    ("container", "virtual", "restarted", "copied"),
    [
        (False, False, "same", "same"),  # of a machine of metal, its own id counts, which nobody copies by accident
        (False, True, "other", "other"),
        (True, False, "other", "other"),
    ],
)
def test_a_copied_id_does_not_identify_a_host(
    monkeypatch: pytest.MonkeyPatch, container: bool, virtual: bool, restarted: str, copied: str
) -> None:
    """Copies of a virtual machine's disk and containers of one image have one machine-id and often one name."""
    files = {"/etc/machine-id": "abcd", "/proc/sys/kernel/random/boot_id": "one"}
    monkeypatch.setattr(host, "_read", lambda path: files.get(str(path), ""))
    monkeypatch.setattr(host, "_is_container", lambda: container)
    monkeypatch.setattr(host, "_is_virtual", lambda: virtual)
    before = host.identify_host()
    assert before
    host.identify_host.cache_clear()
    files["/proc/sys/kernel/random/boot_id"] = "two"
    assert (host.identify_host() == before) == (restarted == "same") == (copied == "same")


def test_a_profile_belongs_to_its_host_unless_set_otherwise(in_folder: Path) -> None:
    make_toy(in_folder)
    found = {}
    for setting in ("", "reuse_on: this_host", "reuse_on: same_kind"):
        (in_folder / "toy.yaml").write_text(f"{HEAD}steps: {{profile: {{{setting}}}}}\n")
        found[setting] = load_recipe(in_folder / "toy.yaml").steps[0].step.reused_where()
    assert list(found.values()) == [Reuse.THIS_HOST, Reuse.THIS_HOST, Reuse.SAME_KIND]


# --- CPUs and limits -------------------------------------------------------------------------------------------------


def test_a_different_set_of_equally_many_cpus_changes_the_key(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = measuring(in_folder)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    toy.run()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    reason, detail = toy.plan()["first"]
    assert reason == "machine" and "CPUs 0,2" in detail and "0,3" in detail


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no sets of CPUs")
def test_the_actual_set_of_cpus_counts() -> None:
    own = os.sched_getaffinity(0)
    if len(own) < 2:
        pytest.skip("there is one CPU only")
    found = []
    try:
        for cpu in sorted(own)[:2]:
            os.sched_setaffinity(0, {cpu})
            found.append(describe_circumstances("cpu", same_kind=False))
    finally:
        os.sched_setaffinity(0, own)
    assert found[0] != found[1]


def write_topology(folder: Path, kinds: dict[int, tuple[str, str, str]]) -> None:
    """Write CPU -> (kHz, its core's threads, who shares its cache)."""
    for cpu, (khz, threads, shared) in kinds.items():
        for name, text in (
            ("cpufreq/cpuinfo_max_freq", khz),
            ("topology/thread_siblings_list", threads),
            ("topology/physical_package_id", "0"),
            ("cache/index3/shared_cpu_list", shared),
        ):
            path = folder / f"cpu/cpu{cpu}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")


def test_sets_of_one_size_differ_by_their_kinds_of_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 and 1 are threads of one fast core, 2 and 3 of another; 4 to 7 are slow; 6 and 7 have another cache."""
    fast, slow = "5000000", "3000000"
    kinds = {cpu: (fast, f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}", "0-5") for cpu in range(4)}
    kinds |= {cpu: (slow, str(cpu), "0-5" if cpu < 6 else "6-7") for cpu in range(4, 8)}
    write_topology(tmp_path, kinds)
    monkeypatch.setattr(host, "_SYSTEM", tmp_path)

    def described(*cpus: int) -> str:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cpus), raising=False)
        return describe_circumstances("cpu", same_kind=True)

    assert described(0, 2) == described(1, 3) == described(0, 3)
    assert len({described(*cpus) for cpus in ((0, 2), (0, 1), (0, 4), (4, 5), (4, 6))}) == 5


def groups(root: Path, cgroup: str, mountinfo: str, **files: str) -> dict[str, str]:
    """Return the limits of a made-up system; `files`: path with `__` for `/` -> text."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mountinfo)
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return read_limits(root)


V2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V1 = (
    "31 20 0:27 %s /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 20 0:28 %s /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
V1_GROUPS = "5:cpu,cpuacct:%s\n4:memory:%s\n1:name=systemd:/\n0::/\n"
CPU, MEMORY = "sys__fs__cgroup__cpu,cpuacct", "sys__fs__cgroup__memory"


def test_the_smallest_limit_of_nested_groups_counts_in_version_2(tmp_path: Path) -> None:
    limits = groups(
        tmp_path,
        "0::/system.slice/ci.service\n",
        V2,
        sys__fs__cgroup__systemDOTslice__cpuDOTmax="200000 100000",
        sys__fs__cgroup__systemDOTslice__memoryDOTmax="8589934592",
        sys__fs__cgroup__systemDOTslice__ciDOTservice__cpuDOTmax="max 100000",
        sys__fs__cgroup__systemDOTslice__ciDOTservice__memoryDOTmax="4294967296",
    )
    assert limits == {"CPU time": "2", "memory": "4294967296"}


def test_limits_of_version_2_are_read_in_a_container_with_its_own_root_group(tmp_path: Path) -> None:
    limits = groups(tmp_path, "0::/\n", V2, sys__fs__cgroup__cpuDOTmax="150000 100000")
    assert limits == {"CPU time": "1.5", "memory": "none"}


@pytest.mark.parametrize("group", ["/docker/abc", "/docker/abc/inner", "/../../docker/abc"])
def test_limits_of_version_1_are_read_when_only_some_groups_are_visible(tmp_path: Path, group: str) -> None:
    limits = groups(
        tmp_path,
        V1_GROUPS % (group, group),
        V1 % ("/docker/abc", "/docker/abc"),
        **{
            f"{CPU}__cpuDOTcfs_quota_us": "50000",
            f"{CPU}__cpuDOTcfs_period_us": "100000",
            f"{CPU}__inner__cpuDOTcfs_quota_us": "-1",
            f"{CPU}__inner__cpuDOTcfs_period_us": "100000",
            f"{MEMORY}__memoryDOTlimit_in_bytes": "1073741824",
            f"{MEMORY}__inner__memoryDOTlimit_in_bytes": "9223372036854771712",
        },
    )
    assert limits == {"CPU time": "0.5", "memory": "1073741824"}


def test_the_smallest_limit_of_nested_groups_counts_in_version_1(tmp_path: Path) -> None:
    limits = groups(
        tmp_path,
        V1_GROUPS % ("/user.slice/job", "/user.slice/job"),
        V1 % ("/", "/"),
        **{
            f"{CPU}__cpuDOTcfs_quota_us": "-1",
            f"{CPU}__cpuDOTcfs_period_us": "100000",
            f"{CPU}__userDOTslice__cpuDOTcfs_quota_us": "300000",
            f"{CPU}__userDOTslice__cpuDOTcfs_period_us": "100000",
            f"{CPU}__userDOTslice__job__cpuDOTcfs_quota_us": "-1",
            f"{CPU}__userDOTslice__job__cpuDOTcfs_period_us": "100000",
            f"{MEMORY}__memoryDOTlimit_in_bytes": "9223372036854771712",
        },
    )
    assert limits == {"CPU time": "3", "memory": "none"}


def test_limits_that_cannot_be_seen_are_unknown_and_not_unlimited(tmp_path: Path) -> None:
    assert groups(tmp_path / "a", "0::/kubepods/pod1\n", "") == {"CPU time": "unknown", "memory": "unknown"}
    broken = groups(tmp_path / "b", "0::/\n", V2, sys__fs__cgroup__cpuDOTmax="gibberish of a future kernel")
    assert broken == {"CPU time": "unknown", "memory": "none"}
    assert read_limits(tmp_path / "nowhere") == {"CPU time": "none", "memory": "none"}


# --- variables -------------------------------------------------------------------------------------------------------


def test_environment_variables_read_by_libraries_count(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = measuring(in_folder)
    toy.run()
    for name in ("CUDA_HOME", "ORT_DISABLE_TELEMETRY", "EDITOR", "TENSORRT_API_KEY"):
        monkeypatch.setenv(name, "x")
    assert toy.plan()["first"] == ("reused", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    reason, detail = toy.plan()["first"]
    assert reason == "machine" and "OMP_NUM_THREADS=3" in detail


def test_variables_that_change_numbers_count_for_transforms_too(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_toy(in_folder)
    (in_folder / "toy.yaml").write_text(f"{HEAD}steps: {{sanitize: {{}}}}\n")
    toy = Toy(in_folder)
    toy.run()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert toy.plan()["sanitize"] == ("reused", "")
    monkeypatch.setenv("ORT_TENSORRT_FP16_ENABLE", "1")
    assert toy.plan()["sanitize"][0] == "tool version"


def test_variables_that_a_program_gets_count_unless_they_are_credentials(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = RunTool(command=("tool", "$Model", "$Output"), environment={"RATIO": None, "HF_TOKEN": None, "MODE": "x"})
    assert step.passed_variables() == ("RATIO",)
    make_toy(in_folder)
    script = "import shutil, sys; shutil.copy(*sys.argv[1:])"
    (in_folder / "copy.py").write_text(script)
    toy = Toy(in_folder)
    toy.recipe.write_text(
        f"{HEAD}steps: {{tool: {{step: run_tool, command: [python3, copy.py, $Model, $Output], "
        "environment: {RATIO: null, HF_TOKEN: null}}}\n"
    )
    monkeypatch.setenv("RATIO", "canary-1")
    monkeypatch.setenv("HF_TOKEN", "one")
    toy.run()
    monkeypatch.setenv("HF_TOKEN", "two")
    assert toy.plan()["tool"] == ("reused", "")
    monkeypatch.setenv("RATIO", "canary-2")
    assert toy.plan()["tool"][0] == "settings changed"
    outputs = (path for path in (in_folder / "outputs").rglob("*") if path.is_file())
    assert not [path for path in outputs if b"canary" in path.read_bytes()]


# --- GPUs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a library that stands in for NVML, called as the real one is."""
    path = tmp_path_factory.mktemp("nvml") / "nvml.so"
    source = Path(__file__).parents[1] / "support" / "nvml_standin.c"
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return str(path)


def test_a_gpu_counts_by_its_uuid_and_its_settings(nvml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "_LIBRARY", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def described(same_kind: bool = False, device: str = "gpu-0", **variables: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return describe_circumstances(device, same_kind=same_kind)

    plain = described()
    assert "GPU: NVIDIA A100 16384 MiB GPU-0001;" in plain
    assert "limit 300001 mW, clocks 1000/1002, ECC" in plain
    assert described(CUDA_VISIBLE_DEVICES="0,1") == plain
    assert described(CUDA_VISIBLE_DEVICES="GPU-0001,GPU-0002") == plain
    assert described(STANDIN_MIG_LATER="1") == plain
    assert described(CUDA_DEVICE_ORDER="PCI_BUS_ID") == plain, "as in processes that we start"
    different = [
        plain,
        described(CUDA_VISIBLE_DEVICES="1,0"),
        described(CUDA_VISIBLE_DEVICES="0"),
        described(CUDA_VISIBLE_DEVICES="GPU-0002"),
        described(CUDA_VISIBLE_DEVICES="MIG-some-part"),
        described(CUDA_VISIBLE_DEVICES=""),
        described(CUDA_VISIBLE_DEVICES="1,0", CUDA_DEVICE_ORDER="FASTEST_FIRST"),
        described(device="gpu-1"),
        described(STANDIN_POWER="250000"),
        described(STANDIN_CLOCK="900"),
        described(STANDIN_NO_CLOCKS="1"),
    ]
    assert len(set(different)) == len(different)
    assert "GPU-" not in described(same_kind=True)
    assert described(same_kind=True) != described(same_kind=True, CUDA_VISIBLE_DEVICES="1,0")


def test_a_driver_that_does_not_answer_leaves_settings_unknown(nvml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "_LIBRARY", nvml)
    monkeypatch.setenv("STANDIN_FAILS", "1")
    assert "GPU settings: unknown" in describe_circumstances("gpu-0", same_kind=False)
    monkeypatch.setattr(gpu_state, "_LIBRARY", "/nowhere/libnvidia-ml.so")
    assert "GPU settings: unknown" in describe_circumstances("gpu-0", same_kind=False)


def test_engines_belong_to_the_gpus_that_are_seen(nvml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "_LIBRARY", nvml)
    machine = host.visible_kinds(("NVIDIA A100", "NVIDIA T4"))
    assert machine == ("NVIDIA A100", "NVIDIA T4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert host.visible_kinds(machine) == ("NVIDIA T4",)


def test_machines_and_gpus_of_a_kind_are_equivalent_on_a_cluster(nvml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "_LIBRARY", nvml)
    monkeypatch.setenv(host.ON_CLUSTER, "1")
    found = set()
    for seen in ("", "0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        monkeypatch.setenv("OMP_NUM_THREADS", f"{len(seen) + 1}")
        found.add(describe_place(Reuse.THIS_HOST, "gpu-0"))
    assert len(found) == 1
    assert "any of its kind" in found.pop()


def test_circumstances_are_stable() -> None:
    found = set()
    for _ in range(3):
        found.add(describe_place(Reuse.THIS_HOST, "cpu"))
        sum(number * number for number in range(300_000))
    assert len(found) == 1
    assert found.pop().startswith(fingerprint_machine())
