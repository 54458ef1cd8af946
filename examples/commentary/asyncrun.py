"""A run in the background: a Manager starts it, and it is watched, asked for its state, and cancelled."""

import asyncio
from tempfile import TemporaryDirectory

from commentary import build_engine, build_request, make_parser, print_summary

from promptiter.manager import Manager
from promptiter.runs import FolderStore


async def main(model: str | None, folder: str) -> None:
    async with Manager(build_engine(model), store=FolderStore(folder)) as manager:
        run = await manager.start(build_request())
        print(f"started: {run.status}")
        async for event in manager.watch(run.run_id):
            if event.type == "round_completed":
                state = await manager.get(run.run_id)
                print(f"after round {event.round}: {state.status}, validation score {state.accepted_score:.2f}")
        print_summary(await manager.get(run.run_id))

        other = await manager.start(build_request())
        cancelled = await manager.cancel(other.run_id)
        print(f"another run: {cancelled.status}")
        print(f"runs, newest first: {[each.status for each in (await manager.list()).runs]}")


with TemporaryDirectory() as folder:  # give a folder of your own, or a SqlStore, and runs outlive this process
    asyncio.run(main(make_parser(__doc__).parse_args().model, folder))
