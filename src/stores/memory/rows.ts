/**
 * Rows in memory, by seq: what every step of the outbox does with them.
 *
 * @module
 */

import type { PendingRow } from '../../store/outbox.ts'

export function bySeq<Row extends PendingRow>(rows: ReadonlyMap<number, Row>): Row[] {
  return [...rows.values()].sort((one, other) => one.seq - other.seq)
}

/** Removes the rows that are there and belong to the lane. */
export function take<Row extends PendingRow>(rows: Map<number, Row>, lane: number, seqs: readonly number[]): Row[] {
  return seqs.flatMap((seq) => {
    const row = rows.get(seq)
    if (row?.lane !== lane) return []
    rows.delete(seq)
    return [row]
  })
}

/** The first rows within both limits, and the first whatever its size. */
export function upTo<Row extends PendingRow>(rows: readonly Row[], limit: number, bytesMax: number): Row[] {
  let bytes = 0
  return rows.slice(0, limit).filter((row, index) => {
    const fits = index === 0 || bytes < bytesMax
    bytes += Buffer.byteLength(row.payload)
    return fits
  })
}

export function pendingOf(row: PendingRow): PendingRow {
  const { lane, seq, id, topic, orderingKey, payload, encoding, contentType, headers, createdAtMs } = row
  return { lane, seq, id, topic, orderingKey, payload, encoding, contentType, headers, createdAtMs }
}

export function keysOf(rows: readonly PendingRow[]): string[] {
  return [...new Set(rows.map((row) => row.orderingKey))].filter((key) => key !== null)
}
