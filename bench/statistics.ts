/**
 * Statistics: whether two samples have the same mean, and how fast a time grows with a size.
 *
 * @module
 */

export interface Comparison {
  /** Welch's t: the difference of the means in units of its standard error. */
  readonly t: number
  /** The standard error, in the unit of the samples. */
  readonly error: number
}

/** Welch's t-test of two samples with unequal variances. */
export function welch(one: readonly number[], other: readonly number[]): Comparison {
  const [a, b] = [momentsOf(one), momentsOf(other)]
  const error = Math.sqrt(a.variance / one.length + b.variance / other.length)
  return { t: (a.mean - b.mean) / error, error }
}

function momentsOf(values: readonly number[]): { readonly mean: number; readonly variance: number } {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1)
  return { mean, variance }
}

/** Exponent e of time = c * size ** e, by least squares over the logarithms. 1 = linear. */
export function growth(points: readonly { readonly size: number; readonly time: number }[]): number {
  const xs = points.map(({ size }) => Math.log(size))
  const ys = points.map(({ time }) => Math.log(time))
  const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length
  const [meanX, meanY] = [mean(xs), mean(ys)]
  const above = xs.reduce((sum, x, at) => sum + (x - meanX) * ((ys[at] ?? 0) - meanY), 0)
  return above / xs.reduce((sum, x) => sum + (x - meanX) ** 2, 0)
}
