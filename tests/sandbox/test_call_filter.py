"""What the filter of system calls decides, on each kind of machine: its program is run here, as the kernel does."""

from __future__ import annotations

import errno
import os

import pytest

from promptiter.sandbox.supervisor import seccomp

ALLOWED, ASKED = "allowed", "asked"
MACHINES = ("x86_64", "aarch64")
NUMBERS = {
    "x86_64": {
        "open": 2, "openat": 257, "openat2": 437, "truncate": 76, "chmod": 90, "ioctl": 16, "socket": 41,
        "socketpair": 53, "setpriority": 141, "ioprio_set": 251, "sched_setscheduler": 144, "prlimit64": 302,
        "shmat": 30, "shmctl": 31, "msgsnd": 69, "semop": 65, "mq_unlink": 241, "io_uring_setup": 425, "write": 1,
    },
    "aarch64": {
        "openat": 56, "openat2": 437, "truncate": 45, "fchmodat": 53, "ioctl": 29, "socket": 198,
        "socketpair": 199, "setpriority": 140, "ioprio_set": 30, "sched_setscheduler": 119, "prlimit64": 261,
        "shmat": 196, "shmctl": 195, "msgsnd": 189, "semop": 193, "mq_unlink": 181, "io_uring_setup": 425, "write": 64,
    },
}  # fmt: skip


def decide(machine: str, call: str | int, *arguments: int, network: bool = True, audit: int | None = None) -> str:
    """What becomes of a call."""
    program = seccomp._build(machine, seccomp._list_blocks(machine, network=network))
    number = NUMBERS[machine][call] if isinstance(call, str) else call
    data = {0: number, 4: seccomp._MACHINES[machine].audit if audit is None else audit}
    data |= {16 + 8 * at: value & 0xFFFFFFFF for at, value in enumerate(arguments)}
    at = value = 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        if code == 0x20:
            value = data[constant]
        elif code == 0x54:
            value &= constant
        elif code in {0x15, 0x35}:
            at += if_true if (value == constant if code == 0x15 else value >= constant) else if_false
        else:
            assert code == 0x06
            names = {0x7FFF0000: ALLOWED, 0x7FC00000: ASKED}
            return names.get(constant) or errno.errorcode[constant - 0x00050000]


@pytest.mark.parametrize("machine", MACHINES)
def test_shared_memory_semaphores_and_queues_of_others(machine: str) -> None:
    """Their numbers can be guessed, so it is not enough that none can be made or looked up."""
    for call in ("shmat", "shmctl", "msgsnd", "semop", "mq_unlink"):
        assert decide(machine, call, 0) == "EACCES"


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_and_priorities_of_the_caller_only(machine: str) -> None:
    for call in ("sched_setscheduler", "prlimit64"):
        assert decide(machine, call, 0) == ALLOWED
        assert decide(machine, call, 1234) == "EPERM"
    for call, (process, group, user) in (("setpriority", (0, 1, 2)), ("ioprio_set", (1, 2, 3))):
        assert decide(machine, call, process, 0) == ALLOWED
        assert decide(machine, call, process, 1234) == "EPERM"
        assert decide(machine, call, group, 0) == ALLOWED
        assert decide(machine, call, user, 0) == "EPERM"  # all processes of the caller's user


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_file_systems_can_read_only(machine: str) -> None:
    set_flags, set_version, set_attributes, enable_verity = 0x40086602, 0x40087602, 0x401C5820, 0x40806685
    create_subvolume, get_flags, reflink, count_readable = 0x5000940E, 0x80086601, 0x40049409, 0x541B
    for request in (set_flags, set_version, set_attributes, enable_verity, create_subvolume):
        assert decide(machine, "ioctl", 3, request) == "EPERM"
    for request in (get_flags, reflink, count_readable):
        assert decide(machine, "ioctl", 3, request) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_unix_sockets_are_connected_to_each_other_only(machine: str) -> None:
    unix, inet, stream, datagram, raw, packets, close_on_exec = 1, 2, 1, 2, 3, 5, 0o2000000
    assert decide(machine, "socket", unix, stream) == "EACCES"
    assert decide(machine, "socket", inet, stream) == ALLOWED
    assert decide(machine, "socket", inet, stream, network=False) == "EACCES"
    assert [decide(machine, "socketpair", unix, each | close_on_exec) for each in (stream, packets)] == [ALLOWED] * 2
    assert [decide(machine, "socketpair", unix, each | close_on_exec) for each in (datagram, raw)] == ["EACCES"] * 2


@pytest.mark.parametrize("machine", MACHINES)
def test_with_an_old_landlock_no_file_is_emptied_unless_it_is_opened_for_writing(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [("openat", 2), *([("open", 1)] if machine == "x86_64" else [])]
    assert decide(machine, "truncate") == ALLOWED  # Landlock decides
    monkeypatch.setattr(seccomp, "read_abi", lambda: 2)
    assert decide(machine, "truncate") == "EACCES"
    assert decide(machine, "openat2") == "ENOSYS"
    for call, before in calls:
        others = (0,) * before
        for mode in (os.O_RDONLY, os.O_ACCMODE):
            assert decide(machine, call, *others, mode | os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC) == "EACCES"
            assert decide(machine, call, *others, mode | os.O_CREAT) == ALLOWED
        for mode in (os.O_WRONLY, os.O_RDWR):
            assert decide(machine, call, *others, mode | os.O_TRUNC | os.O_CREAT) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_other_calls(machine: str) -> None:
    assert decide(machine, "write", 1) == ALLOWED
    assert decide(machine, "chmod" if machine == "x86_64" else "fchmodat") == ASKED
    assert decide(machine, "io_uring_setup") == "ENOSYS"
    assert decide(machine, "write", 1, audit=0x40000003) == "EPERM"  # a 32-bit program
    if machine == "x86_64":
        assert decide(machine, 0x40000001, 1) == "ENOSYS"  # x32
