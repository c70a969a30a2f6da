import 'reflect-metadata'
import type { ServerResponse } from 'node:http'
import { Body, Controller, Module, Post, Req, Res } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import type { NestExpressApplication } from '@nestjs/platform-express'
import { Idempotent, idempotencyForDecorated, type NestRequest, onceOf } from 'effectively-once/nestjs'
import { listening, once, placeOrder } from './orders.mjs'

@Controller('orders')
class OrdersController {
  @Post()
  @Idempotent()
  async create(
    @Req() request: NestRequest,
    @Body() body: { cents: number },
    @Res({ passthrough: true }) response: ServerResponse,
  ): Promise<{ orderId: number }> {
    const order = await placeOrder(onceOf(once, request), body)
    response.setHeader('location', `/orders/${order.orderId}`)
    return order
  }
}

@Module({ controllers: [OrdersController] })
class OrdersModule {}

// rawBody: repeats are compared by the bytes that were sent.
const app = await NestFactory.create<NestExpressApplication>(OrdersModule, { rawBody: true, logger: ['error'] })
app.useGlobalInterceptors(idempotencyForDecorated(once, { scope: ({ headers }) => String(headers['x-tenant'] ?? '') }))
await app.listen(Number(process.env['PORT'] ?? 0), '127.0.0.1')
listening(app.getHttpServer())
