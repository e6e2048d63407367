"""Check a large file of edits and report time and peak memory.

    python benchmarks/read_edits.py --rows 2000000 --json result.json

Writes a JSONL file of generated edits to a temporary folder, then runs `ultraedit edit --dry-run`'s
check on it in a process of its own: read, validate, encode with a tokenizer, count.
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Write, check, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "edits.jsonl"
        write(file, options.rows)
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            result = {
                "rows": options.rows,
                "bytes": file.stat().st_size,
                **pool.apply(check, (file,)),
            }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def write(file: Path, rows: int) -> None:
    """Write edits with every column a reader has to look at."""
    with file.open("w", encoding="utf-8") as lines:
        for number in range(rows):
            row = {
                "id": f"edit-{number}",
                "prompt": f"What is the capital of the country numbered {number}?",
                "target": f"City {number % 9973}",
                "subject": f"the country numbered {number}",
                "rephrasings": [f"Name the capital of the country numbered {number}."],
                "unrelated": [
                    {"prompt": f"Who wrote book {number % 97}?", "answer": "Ada Lovelace"}
                ],
            }
            lines.write(json.dumps(row) + "\n")


def check(file: Path) -> dict[str, Any]:
    """Check the file in this process and return what it took."""
    from rich.console import Console

    from ultraedit.cli.rows import check_rows
    from ultraedit.tokens import Encoder

    encoder = Encoder(build_tokenizer(), vocabulary=2048, context=256)
    before = peak()
    start = time.perf_counter()
    checked = check_rows(file, encoder, Console(quiet=True), skip_bad=False)
    seconds = time.perf_counter() - start
    return {
        "good": checked.good,
        "seconds": round(seconds, 1),
        "peak_mib": peak(),
        "peak_mib_before_reading": before,
    }


def build_tokenizer() -> Any:
    """Train a small byte-level tokenizer, as large models have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = [f"What is the capital of the country numbered {n}? City {n}" for n in range(2000)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2048, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def peak() -> int:
    """Return the largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
