"""Runs the tests of the cart, and prints the share that passes, with each case."""

import json
from collections.abc import Callable
from pathlib import Path

import cart

CASES: dict[str, tuple[Callable[[], object], object]] = {
    "shipping below the limit": (lambda: cart.add_shipping(49), 54),
    "shipping at the limit": (lambda: cart.add_shipping(50), 50),
    "no discount for three": (lambda: cart.apply_discount(30, 3), 30),
    "discount for five": (lambda: cart.apply_discount(30, 5), 28),
    "gift for a member": (lambda: cart.is_gift(20, True), True),
    "no gift for a guest": (lambda: cart.is_gift(20, False), False),
    "no gift for little": (lambda: cart.is_gift(19, True), False),
}

cases: list[dict[str, object]] = []
for name, (call, expected) in CASES.items():
    try:
        actual = call()
    except (ArithmeticError, LookupError, NameError, TypeError, ValueError) as error:
        actual = f"{type(error).__name__}: {error}"
    cases.append(
        {"name": name, "passed": actual == expected, "expected": expected, "actual": actual, "file": "cart.py"}
    )
lines = [line for line in Path("cart.py").read_text(encoding="utf-8").splitlines() if line.strip()]
score = sum(case["passed"] is True for case in cases) / len(cases)
print(json.dumps({"score": round(score, 3), "metrics": {"code_lines": len(lines)}, "cases": cases}))
