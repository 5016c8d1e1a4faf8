"""Execute the notebooks that are named, each in a folder of its own: errors and warnings fail."""

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HANGS = 600  # seconds for one cell


def main(paths: list[str]) -> int:
    """0 if every notebook ran and wrote nothing to stderr."""
    failed = []
    for path in map(Path, paths):
        notebook = nbformat.read(path, as_version=4)
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            resources = {"metadata": {"path": folder}}
            NotebookClient(notebook, timeout=HANGS, resources=resources).execute()
        seconds = time.monotonic() - started
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        noise = "".join(o["text"] for o in outputs if o.get("name") == "stderr")
        print(f"{path.name}: {seconds:.0f} s", noise, sep="\n" if noise else "", flush=True)
        if noise:
            failed.append(path.name)
    if failed:
        print(f"wrote to stderr: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
