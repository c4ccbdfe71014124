"""What the pages of metrics say."""

from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs" / "metrics"


def documented_metrics(files: bool = False) -> str:
    """The pages of the keys of `metrics.jsonl`, one behind the other. files: with the page of evaluation.json and
    pretraining.json."""
    pages = [path for path in sorted(PAGES.glob("*.md")) if files or path.stem != "files"]
    assert len(pages) > 6
    return "\n".join(path.read_text(encoding="utf-8") for path in pages)
