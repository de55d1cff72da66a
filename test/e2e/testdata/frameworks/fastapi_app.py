"""A FastAPI application whose route takes an order: port."""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Order(BaseModel):
    order_id: str
    amount_cents: int


@app.post("/messages", status_code=204)
def messages(order: Order):
    pass


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
