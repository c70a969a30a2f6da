import { idempotency, onceOf } from 'effectively-once/fastify'
import { fastify } from 'fastify'
import { listening, once, placeOrder } from './orders.mjs'

const app = fastify()

app.post(
  '/orders',
  { ...idempotency(once, { scope: (request) => request.headers['x-tenant'] }) },
  async (request, reply) => {
    const order = await placeOrder(onceOf(once, request), request.body)
    return reply.code(201).header('location', `/orders/${order.orderId}`).send(order)
  },
)

await app.listen({ port: Number(process.env.PORT ?? 0), host: '127.0.0.1' })
listening(app.server)
