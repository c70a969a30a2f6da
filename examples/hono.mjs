import { serve } from '@hono/node-server'
import { idempotency, onceOf } from 'effectively-once/hono'
import { Hono } from 'hono'
import { listening, once, placeOrder } from './orders.mjs'

const app = new Hono()

app.post('/orders', idempotency(once, { scope: (c) => c.req.header('x-tenant') }), async (c) => {
  const order = await placeOrder(onceOf(once, c), await c.req.json())
  return c.json(order, 201, { location: `/orders/${order.orderId}` })
})

const options = { fetch: app.fetch, port: Number(process.env.PORT ?? 0), hostname: '127.0.0.1' }
const server = serve(options, () => listening(server))
