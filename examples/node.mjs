import http from 'node:http'
import { json } from 'node:stream/consumers'
import { idempotency } from 'effectively-once/node'
import { listening, once, placeOrder } from './orders.mjs'

const options = { scope: (request) => request.headers['x-tenant'], operation: 'POST /orders' }

const createOrder = idempotency(once, options, async (request, response, context) => {
  const order = await placeOrder(context, await json(request))
  response.writeHead(201, { 'content-type': 'application/json', location: `/orders/${order.orderId}` })
  response.end(JSON.stringify(order))
})

const server = http.createServer((request, response) => {
  if (request.method === 'POST' && request.url === '/orders') createOrder(request, response)
  else response.writeHead(404).end()
})
server.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => listening(server))
