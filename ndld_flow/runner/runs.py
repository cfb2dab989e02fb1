"""The folders of finished runs: find them by id, tag, recipe or path; name them; list them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.artifacts.files import follow, point_to
from ndld_flow.artifacts.store import Store
from ndld_flow.errors import OutputsError, RequestError
from ndld_flow.report.run_folder import RUN_RECORD

LATEST = "latest"
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Outputs:
    """The folder that holds the store, the runs and their tags."""

    root: Path

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def tags(self) -> Path:
        return self.root / "tags"

    def prepare(self) -> None:
        """Make the folder where it is missing. Raises OutputsError when nothing can be written there."""
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            probe = self.root / ".writable"
            probe.touch()
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise OutputsError(
                f"outputs folder {self.root}: cannot be written: {error.strerror}. Choose another with --outputs."
            ) from None

    def folders(self, recipe: str = "*") -> Iterator[Path]:
        """Folders of finished runs, oldest first."""
        found = self.runs.glob(f"{recipe}/*/{RUN_RECORD}")
        return iter(sorted((p.parent for p in found if not _is_link(p.parent)), key=lambda p: (p.name, p.parent.name)))

    def latest(self, recipe: str) -> Path | None:
        """Folder of a recipe's newest run."""
        folder = follow(self.runs / recipe / LATEST)
        return folder.resolve() if folder is not None else None

    def tagged(self) -> dict[str, Path]:
        """Tag -> run folder, for the tags whose run is still there."""
        names = sorted(path.name for path in self.tags.glob("*")) if self.tags.is_dir() else []
        found = {name: follow(self.tags / name) for name in names}
        return {name: folder.resolve() for name, folder in found.items() if folder is not None}

    def find(self, reference: str) -> Path:
        """The folder of the run that a tag, recipe, (shortened) id, `latest` or path names.

        Raises RequestError when there is none, or more than one.
        """
        tagged = self.tagged()
        if reference in tagged:
            return tagged[reference]
        if (Path(reference) / RUN_RECORD).is_file():
            return Path(reference).resolve()
        folders = list(self.folders())
        if reference == LATEST and folders:
            return folders[-1]
        return self.latest(reference) or self._find_by_id(reference, folders)

    def _find_by_id(self, reference: str, folders: list[Path]) -> Path:
        recipe, _, start = reference.rpartition("/")
        matches = [
            folder
            for folder in folders
            if recipe in ("", folder.parent.name)
            and start
            and (folder.name.startswith(start) or folder.name.rpartition("-")[2].startswith(start))
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            shown = ", ".join(f"{folder.parent.name}/{folder.name}" for folder in matches[:5])
            raise RequestError(f"run {reference}: {len(matches)} runs begin so ({shown}, ...). Give more of the id.")
        raise RequestError(
            f"run {reference}: there is no such run, tag or recipe in {self.runs}. `ndld-flow runs` lists them; "
            "--outputs names another folder."
        )

    def set_tag(self, folder: Path, name: str) -> None:
        """Give a run a lasting name, taking it from the run that had it. Raises RequestError for an unusable name."""
        if not TAG.fullmatch(name) or name == LATEST:
            raise RequestError(f"tag {name!r}: use letters, digits, `.`, `_` and `-`, and not `{LATEST}`.")
        self.tags.mkdir(parents=True, exist_ok=True)
        point_to(self.tags / name, folder)

    def remove_tag(self, name: str) -> None:
        """Forget a name. Raises RequestError when there is no such tag."""
        if not TAG.fullmatch(name) or name not in {path.name for path in self.tags.glob("*")}:
            raise RequestError(f"tag {name!r}: there is no such tag; there are: {', '.join(self.tagged()) or 'none'}.")
        (self.tags / name).unlink()


def _is_link(folder: Path) -> bool:
    return folder.is_symlink() or folder.name.startswith(".")
