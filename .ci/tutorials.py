"""Execute the given notebooks, each in a folder of its own; errors and warnings are failures.

Usage: python .ci/tutorials.py [--store] NOTEBOOK...

With --store, their outputs are stored in them for readers; leave SMOKE_TEST unset then.
"""

import base64
import io
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

HANGS = 600  # most seconds for one cell


def execute(notebook: NotebookNode) -> str:
    """Run a notebook, replacing its outputs; returns what it writes to stderr."""
    metadata = notebook.metadata.copy()  # the kernel adds its version to it
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=HANGS,
            startup_timeout=HANGS,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    notebook.metadata = metadata
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output.get("name") == "stderr")


def shrink_pictures(notebook: NotebookNode) -> None:
    """Reduce every picture to its own palette, which makes it about three times smaller."""
    widest = Image.Quantize.MAXCOVERAGE  # keeps rare colours, such as a red cross
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                drawn = Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
                small = io.BytesIO()
                palette = drawn.convert("RGB").quantize(256, widest, kmeans=2)
                palette.save(small, "PNG", optimize=True)
                output["data"]["image/png"] = base64.b64encode(small.getvalue()).decode()


def main(paths: list[str], store: bool) -> int:
    """Returns 0 if every notebook ran and wrote nothing to stderr."""
    failed = []
    for path in map(Path, paths):
        notebook = nbformat.read(path, as_version=4)
        started = time.monotonic()
        noise = execute(notebook)
        seconds = time.monotonic() - started
        print(f"{path.name}: {seconds:.0f} s", noise, sep="\n" if noise else "", flush=True)
        if noise:
            failed.append(path.name)
        elif store:
            shrink_pictures(notebook)
            nbformat.write(notebook, path)
    if failed:
        print(f"wrote to stderr: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name != "--store"], "--store" in sys.argv[1:]))
