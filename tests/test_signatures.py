from __future__ import annotations

from functools import wraps

from promptiter.signatures import find_misfit


def greet(name: str, *, politely: bool = False) -> str:
    return f"Dear {name}" if politely else name


def test_a_function_fits_the_arguments_that_it_takes() -> None:
    assert find_misfit(greet, "Ann", politely=True) is None
    assert find_misfit(greet) == "missing a required argument: 'name'"
    assert find_misfit(greet, "Ann", "Bo") == "too many positional arguments"
    assert find_misfit(greet, "Ann", loudly=True) == "got an unexpected keyword argument 'loudly'"


def test_a_function_without_a_signature_fits_everything() -> None:
    assert find_misfit(min, 1, 2, 3) is None


def test_a_wrapper_that_adds_an_argument_fits_what_it_takes_itself() -> None:
    @wraps(greet)
    def greet_ann() -> str:
        return greet("Ann")

    assert find_misfit(greet_ann) is None
    assert find_misfit(greet_ann, "Bo") == "too many positional arguments"
