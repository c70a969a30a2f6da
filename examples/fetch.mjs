/**
 * From Request to Response. `POST` is what a Next.js route handler exports, and what Bun and Deno serve as it is; on
 * Node.js a small server brings the two together.
 */
import { serve } from '@hono/node-server'
import { idempotency } from 'effectively-once/fetch'
import { listening, once, placeOrder } from './orders.mjs'

const options = { scope: (request) => request.headers.get('x-tenant'), operation: 'POST /orders' }

export const POST = idempotency(once, options, async (request, context) => {
  const order = await placeOrder(context, await request.json())
  return Response.json(order, { status: 201, headers: { location: `/orders/${order.orderId}` } })
})

const server = serve(
  {
    fetch: (request) =>
      request.method === 'POST' && new URL(request.url).pathname === '/orders'
        ? POST(request)
        : new Response(null, { status: 404 }),
    port: Number(process.env.PORT ?? 0),
    hostname: '127.0.0.1',
  },
  () => listening(server),
)
