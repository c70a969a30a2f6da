import { idempotency, onceOf } from 'effectively-once/express'
import express from 'express'
import { listening, once, placeOrder } from './orders.mjs'

const app = express()

app.post(
  '/orders',
  idempotency(once, { scope: (req) => req.headers['x-tenant'] }),
  express.json(),
  async (req, res) => {
    const order = await placeOrder(onceOf(once, req), req.body)
    res.status(201).location(`/orders/${order.orderId}`).json(order)
  },
)

const server = app.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => listening(server))
