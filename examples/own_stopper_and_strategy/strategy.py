"""A search algorithm of one's own: it tries the sentences of a list, one per round."""

from promptiter import PatchSet, Session, SurfacePatch

SENTENCES = ("Apologize first.", "Name the city.", "Name the order id.")


class TrySentences:
    """`algorithm: {"name": "strategy:TrySentences", "limit": 3}` in optimizer.json."""

    def __init__(self, limit: int = 10) -> None:
        self.limit = limit

    async def search(self, session: Session) -> None:
        [surface_id] = session.targets
        for sentence in SENTENCES[: self.limit]:
            if await session.should_stop():
                return
            await session.begin_round()
            text = str(session.accepted.profile.value(surface_id, session.snapshot)).strip()
            patch = SurfacePatch(surface_id=surface_id, value=f"{text} {sentence}", reason="the next of the list")
            await session.validate(PatchSet((patch,)))
            await session.complete_round()
