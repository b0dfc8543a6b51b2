# SPDX-License-Identifier: BSD-3-Clause
"""Makes the table of the kernels' inner loops for docs/kernels.md.

    kernel_loops.py FOLDER      where <instruction set>.<source>.s are, assembly of src/cpu/isa

llvm-mca simulates a loop on a processor that it has a model of, with all data in the L1 cache. What it
does not know is memory. scripts/kernel_analysis.sh calls this.
"""

import pathlib
import re
import subprocess
import sys

PROCESSORS = ["neoverse-n1", "neoverse-v2", "apple-m1"]
WITHOUT_BFLOAT16 = {"neoverse-n1", "apple-m1"}
ITERATIONS = 200

NAME = re.compile(r"^([A-Za-z_][\w.$]*):")
LABEL = re.compile(r"^(\.L\w+):")
BRANCH = re.compile(r"^\s(?:b\.?(?:eq|ne|cs|cc|mi|pl|hi|ls|ge|lt|gt|le)|cbn?z|tbn?z|j\w+)\s.*?(\.L\w+)$")
MULTIPLY = re.compile(r"^\s(?:fmla|fmls|bfdot|bfmmla|vfn?m\w+[ps][sd]|vdpbf16ps)\s")
LOAD = re.compile(r"^\s(?:ld|prfm)")


def functions(path):
    """(mangled name, lines) of each function of a file of assembly."""
    name, lines = None, []
    for line in path.read_text().splitlines():
        if match := NAME.match(line):
            name, lines = match[1], []
        elif line.strip() == ".cfi_endproc" and name:
            yield name, lines
            name = None
        else:
            lines.append(line)


def loops(lines):
    """The instructions of each loop that holds no other."""
    begins = {}
    for i, line in enumerate(lines):
        if match := LABEL.match(line):
            begins[match[1]] = i
        elif (match := BRANCH.match(line)) and match[1] in begins:
            yield [line for line in lines[begins[match[1]]:i + 1] if re.match(r"\s[a-z]", line)]
            begins.clear()


def hottest(folder, source, function, limit=100):
    """That loop of a function with the most multiplications, but no more than the limit; the shortest."""
    found = [loop for name, lines in functions(folder / f"{source}.s") if re.search(function, name)
             for loop in loops(lines) if multiplications(loop) <= limit]
    if not found:
        sys.exit(f"{source}.s has no loop in a function like {function}")
    return max(found, key=lambda loop: (multiplications(loop), -len(loop)))


def multiplications(loop):
    return sum(bool(MULTIPLY.match(line)) for line in loop)


def cycles(lines, processor):
    """For one iteration, of many."""
    result = subprocess.run(
        ["llvm-mca", "-mtriple=aarch64-linux-gnu", f"-mcpu={processor}",
         f"-iterations={ITERATIONS}", "-instruction-info=0", "-resource-pressure=0"],
        input="\n".join(line for line in lines if not BRANCH.match(line)) + "\n", check=True,
        capture_output=True, text=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", result)[1]) / ITERATIONS


def peak(instruction, count, processor):
    """Cycles of multiplications alone, none of which waits for another."""
    return cycles([f"\t{instruction.format(i % 24)}" for i in range(count)], processor)


def product_rows(folder):
    yield "| loop | instructions | FLOP an instruction | " + " | ".join(PROCESSORS) + " |"
    yield "|---|--:|--:|" + "--:|" * len(PROCESSORS)
    for title, source, operand, instruction, flops in [
            ("float32, `neon`", "neon.matrix", "ff", "fmla v{}.4s, v30.4s, v31.s[0]", 8),
            ("float64, `neon`", "neon.matrix", "dd", "fmla v{}.2d, v30.2d, v31.d[0]", 4),
            ("bfloat16, `neon_bf16`", "neon_bf16.matrix", "fj",
             "bfmmla v{}.4s, v30.8h, v31.8h", 32)]:
        loop = hottest(folder, source, f"multiply_micro_tileI{operand}Ll6ELl4E")
        count = multiplications(loop)
        shares = ["–" if "bfmmla" in instruction and processor in WITHOUT_BFLOAT16 else
                  f"{peak(instruction, count, processor) / cycles(loop, processor):.0%}"
                  for processor in PROCESSORS]
        yield (f"| {title} | {len(loop)} | {count * flops / len(loop):.1f} | "
               + " | ".join(shares) + " |")
    for title, source, operand, vectors, flops in [
            ("float32, `avx2`", "avx2.matrix", "ff", 2, 16),
            ("float32, `avx512`", "avx512.matrix", "ff", 4, 32),
            ("bfloat16, `avx512_bf16`", "avx512_bf16.matrix", "fj", 4, 64)]:
        loop = hottest(folder, source, f"multiply_micro_tileI{operand}Ll6ELl{vectors}E")
        yield (f"| {title} | {len(loop)} | {multiplications(loop) * flops / len(loop):.1f} |"
               + " |" * len(PROCESSORS))


def score_rows(folder):
    """The cost of a score: its weight, and the products with D = 64 before and after it."""
    yield "| cycles a score | " + " | ".join(PROCESSORS) + " |"
    yield "|---|" + "--:|" * len(PROCESSORS)
    depth = 64
    for title, source, form, operand, width in [
            ("float32", "neon", 0, "ff", 1), ("bfloat16, `neon_bf16`", "neon_bf16", 1, "fj", 4)]:
        product = hottest(folder, f"{source}.matrix", f"multiply_micro_tileI{operand}Ll6ELl4E")
        weights = hottest(folder, f"{source}.scores",
                          f"softmax_tileILNS0_10WeightFormE{form}Ef")
        scores = 4 * sum(bool(re.match(r"\sshl\s", line)) for line in weights)
        for what, loop, per_score in [
                ("both products, D = 64", product, 2 * depth / width / 96),
                ("weight", weights, 1 / scores)]:
            yield f"| {title}: {what} | " + " | ".join(
                "–" if width > 1 and processor in WITHOUT_BFLOAT16 else
                f"{cycles(loop, processor) * per_score:.2f}" for processor in PROCESSORS) + " |"


def decode_rows(folder):
    yield "| loop | bytes | " + " | ".join(PROCESSORS) + " |"
    yield "|---|--:|" + "--:|" * len(PROCESSORS)
    scores, values = 32, 16  # multiplications
    for title, function, count, elements, size in [
            ("scores, float32, 1 row", "attend_rowsILl1EfE", scores, 128, 4),
            ("scores, float32, 4 rows", "attend_rowsILl4EfE", scores, 32, 4),
            ("values, float32, 1 row", "attend_rowsILl1EfE", values, 64, 4),
            ("values, float32, 4 rows", "attend_rowsILl4EfE", values, 16, 4),
            ("scores, bfloat16, 1 row", "attend_rowsILl1ENS1_8BFloat16", scores, 128, 2),
            ("scores, float16, 1 row", "attend_rowsILl1ENS1_4Half", scores, 128, 2),
            ("scores, int8, 1 row", "attend_rowsILl1ENS1_4Int8", scores, 128, 1)]:
        loop = hottest(folder, "neon.decode", function, count)
        loads = [line for line in loop if LOAD.match(line)]
        cells = []
        for processor in PROCESSORS:
            all_of_it, of_loads = cycles(loop, processor), cycles(loads, processor)
            cells.append(f"{all_of_it:.0f} / {of_loads:.0f}, {elements * size / all_of_it:.0f} B")
        yield f"| {title} | {elements * size} | " + " | ".join(cells) + " |"


def main():
    folder = pathlib.Path(sys.argv[1])
    for rows in product_rows, score_rows, decode_rows:
        print(*rows(folder), "", sep="\n")


if __name__ == "__main__":
    main()
