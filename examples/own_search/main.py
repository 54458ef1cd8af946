"""An evolutionary search with a pool of profiles, on the project of `promptiter init`.

Two instructions of the support desk lack a field, and adding it to only one of them changes nothing. The pool keeps
profiles that are no better yet, so that their children can combine them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from promptiter import Engine, Profile, Session, load_run
from promptiter.policies import TargetScore
from promptiter.runs import RunDirectory
from promptiter.search import Payload, event_type


@event_type("evolution.pool")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChosen(Payload):
    """The profiles that breed in the next round, by digest, the best first, and their scores on the mini-batch."""

    members: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """Breeds three children a round, screens them next to the pool on a mini-batch, and validates each of them."""

    phrases: Sequence[str]
    pool_size: int = 6
    batch_size: int = 4

    async def search(self, session: Session) -> None:
        pool = [session.accepted.profile]
        while not await session.should_stop():
            await session.begin_round()
            children = [await self.breed(session, pool) for _ in range(3)]
            batch = replace(session.train, cases=tuple(session.rng.sample(session.train.cases, self.batch_size)))
            rivals = list({each.digest: each for each in (*children, *pool)}.values())
            screened = await session.evaluate_many([(batch, each) for each in rivals], phase="screening")
            for child in children:
                await session.validate(child)
            scores = {each.profile_digest: each.mean_score or 0.0 for each in screened}
            pool = sorted(rivals, key=lambda each: -scores[each.digest])[: self.pool_size]
            members = tuple(each.digest for each in pool)
            await session.note(PoolChosen(members=members, scores=tuple(scores[each] for each in members)))
            await session.complete_round()

    async def breed(self, session: Session, pool: Sequence[Profile]) -> Profile:
        """Propose a child that has each text from one of two parents, and a phrase more or less in one of its texts."""
        rng, snapshot, names = session.rng, session.snapshot, sorted(session.targets)
        one, other = rng.choices(pool, k=2)
        child = one.reset(rng.sample(names, len(names) // 2), to=other, snapshot=snapshot)
        texts = {name: str(child.value(name, snapshot)) for name in names}
        name, phrase = rng.choice([name for name in names if ", " in texts[name]]), rng.choice(self.phrases)
        child = Profile.of(snapshot, {**texts, name: toggle(texts[name], phrase)})
        return await session.propose(child, parents=[one, other], reason=f"a cross, and the {phrase} in {name}")


def toggle(text: str, phrase: str) -> str:
    """Take a phrase out of the list in a text, or add it after the first item."""
    return text.replace(f"{phrase}, ", "", 1) if phrase in text else text.replace(", ", f", {phrase}, ", 1)


def main() -> None:
    desk = load_run(str(files("promptiter") / "starter"))
    search = Evolution(phrases=("purchase date", "delivery address"))
    engine = Engine(desk.engine.agent, desk.engine.evaluator, search=search)
    request = replace(desk.request, max_rounds=12, stop=TargetScore(1.0))
    print(RunDirectory.begin("runs", engine, request).run_sync())


if __name__ == "__main__":
    main()
