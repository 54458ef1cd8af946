"""A model with structured output. The description of one field is wrong: the ticket is about the delivery."""

from pydantic import BaseModel, Field

from promptiter import ModelNode
from promptiter.agents import chain


class Ticket(BaseModel):
    order_id: str = Field(description="The id of the order.")
    place: str = Field(description="The billing city.")
    due: str = Field(description="The delivery date.")


agent = chain("tickets", ModelNode(name="intake", instruction="Fill in the ticket.", schema=Ticket))
