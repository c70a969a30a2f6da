import { json } from 'node:stream/consumers'
import { idempotency, onceOf } from 'effectively-once/koa'
import Koa from 'koa'
import { listening, once, placeOrder } from './orders.mjs'

const app = new Koa()
const guard = idempotency(once, { scope: (ctx) => ctx.get('x-tenant'), operation: 'POST /orders' })

app.use(async (ctx, next) => {
  if (ctx.method === 'POST' && ctx.path === '/orders') await guard(ctx, next)
  else ctx.status = 404
})

app.use(async (ctx) => {
  if (ctx.path !== '/orders') return
  const order = await placeOrder(onceOf(once, ctx), await json(ctx.req))
  ctx.status = 201
  ctx.set('location', `/orders/${order.orderId}`)
  ctx.body = order
})

const server = app.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => listening(server))
