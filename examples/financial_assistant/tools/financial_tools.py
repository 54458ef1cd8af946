"""The arithmetic of the assistant. Numbers come as the model writes them: 1,234.5 or "1234.5"."""


def subtract(a: str, b: str) -> str:
    """Compute a - b."""
    return f"{_number(a) - _number(b):.4g}" if abs(_number(a) - _number(b)) < 1 else f"{_number(a) - _number(b):.2f}"


def divide(a: str, b: str) -> str:
    """Compute a / b."""
    return f"{_number(a) / _number(b):.4f}"


def _number(text: str) -> float:
    return float(str(text).replace(",", "").replace("$", ""))
