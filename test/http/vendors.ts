/**
 * Frameworks whose own types do not compile with ours (they need the DOM, or disagree with their dependencies), as far
 * as the tests use them. Loaded under a name that the compiler does not follow.
 */

import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type express from 'express'

const load = async (name: string): Promise<unknown> => await import(name)

export interface KoaCtx {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly request: object
  readonly originalUrl: string
  readonly method: string
  readonly path: string
  status: number
  body: unknown
  respond?: boolean | undefined
  append(name: string, value: string): void
}

export interface KoaApp {
  silent: boolean
  use(middleware: (context: KoaCtx, next: () => Promise<unknown>) => Promise<unknown>): KoaApp
  callback(): RequestListener
}

export const Koa: new () => KoaApp = ((await load('koa')) as { readonly default: new () => KoaApp }).default

export interface HonoCtx {
  readonly req: {
    raw: Request
    readonly url: string
    readonly method: string
    readonly routePath: string
    json(): Promise<unknown>
    text(): Promise<string>
    arrayBuffer(): Promise<ArrayBuffer>
    blob(): Promise<Blob>
    parseBody(): Promise<unknown>
    header(name: string): string | undefined
    header(): Record<string, string>
    param(name: string): string | undefined
    query(name: string): string | undefined
    readonly bodyCache: { text?: Promise<string> }
  }
  get res(): Response
  set res(response: Response | undefined)
  json(content: unknown, status?: number): Response
}

type HonoHandler = (context: HonoCtx, next: () => Promise<void>) => Promise<Response | undefined> | Response

export interface HonoApp {
  on(method: string, path: string, ...handlers: HonoHandler[]): HonoApp
  get(path: string, ...handlers: HonoHandler[]): HonoApp
  post(path: string, ...handlers: HonoHandler[]): HonoApp
  use(path: string, ...handlers: HonoHandler[]): HonoApp
  onError(handler: (error: Error, context: HonoCtx) => Response): HonoApp
  readonly fetch: (request: Request) => Promise<Response>
  request(url: string, init: RequestInit): Promise<Response>
}

export const Hono: new () => HonoApp = ((await load('hono')) as { readonly Hono: new () => HonoApp }).Hono

type Listener = (fetch: HonoApp['fetch']) => RequestListener

export const getRequestListener: Listener = (
  (await load('@hono/node-server')) as { readonly getRequestListener: Listener }
).getRequestListener

/** Express 4, with the types of Express 5, which are the same as far as it is used here. */
export const express4: typeof express = ((await load('express4')) as { readonly default: typeof express }).default
