import { expect, test } from 'vitest'
import { statusLine } from '../src/cli/status-line.ts'

test('status line: on a terminal each text takes the place of the one before, and is cut to the width', () => {
  const written: string[] = []
  const line = statusLine({ isTTY: true, columns: 10, write: (text) => written.push(text) })
  line.clear()
  line.show?.('1/20')
  line.show?.('2/20, and more than fits')
  line.clear()
  line.clear()
  expect(written).toEqual(['\r\u001B[2K1/20', '\r\u001B[2K2/20, and', '\r\u001B[2K'])
})

test('status line: elsewhere nothing is written', () => {
  const line = statusLine({ write: () => expect.unreachable() })
  expect(line.show).toBeUndefined()
  line.clear()
})
