"""The report has the commands that build an exported C++ project."""

from __future__ import annotations

import re
import shlex
from html import unescape
from pathlib import Path

from tests.support.models_run import write_model
from tests.support.typed_api import run_once


def test_the_report_leads_to_the_project_and_builds_it(in_folder: Path) -> None:
    write_model(in_folder / "model.onnx", "g (float[2] x) => (float[2] y) { y = Identity(x) }")
    (in_folder / "my.yaml").write_text("model: model.onnx\nsteps:\n  to_cpp: {step: export_cpp}\n")
    folder = Path(run_once("my.yaml").folder)
    section = (folder / "report.html").read_text().partition('<section id="cpp_projects"')[2].partition("</section>")[0]
    (link,) = re.findall(r'href="\./([^"]+)"', section)
    assert (folder / link).read_text().startswith("# A C++ program")
    commands = unescape(re.sub(r"<[^>]+>", "", section)).partition("In the folder of this run:")[2].split("\n")
    configure = shlex.split(next(line for line in commands if line.startswith("cmake -S")))
    assert (folder / configure[2] / "CMakeLists.txt").is_file()
    assert configure[-1].startswith("-DONNXRUNTIME_ROOT=")
