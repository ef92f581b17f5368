// Where to look first: one card for each suspect.
import { BlocksPicture } from "./charts/blocks";
import { HistogramPicture } from "./charts/histogram";
import { powerOfTen, shown, times } from "./format";
import { Badge, Command, RowLink } from "./parts";
import type { Bar, Card, Fact } from "./types";

export function Cards({ cards, more }: { cards: Card[]; more: number }) {
  return (
    <section id="first" aria-labelledby="first-title">
      <h2 id="first-title" tabIndex={-1}>Where to look first</h2>
      {cards.length === 0 && <p>Nothing is suspected.</p>}
      <ol class="cards">
        {cards.map((card, index) => <li><OneCard card={card} place={index + 1} isOpen={index < 3} /></li>)}
      </ol>
      {more > 0 && <p>{more} more {more === 1 ? "suspect has" : "suspects have"} no card; all rows are below.</p>}
    </section>
  );
}

function OneCard({ card, place, isOpen }: { card: Card; place: number; isOpen: boolean }) {
  return (
    <article class={`card ${card.tone}`}>
      <header>
        <h3>{place}. <RowLink row={card.row}><span class="name">{card.name}</span></RowLink></h3>
        <Badge tone={card.tone}>{card.times === null ? card.tone : times(card.times, card.unit)}</Badge>
        {card.label && <span class="label">{card.label}</span>}
      </header>
      <p class="why">{card.why}</p>
      {card.cause && <p><b>Likely cause:</b> {card.cause}</p>}
      {card.module && <p><b>In</b> <span class="name">{card.module}</span></p>}
      {card.source && <p class="source"><b>At</b> <span class="name">{card.source}</span></p>}
      <details open={isOpen}>
        <summary>details<span class="unseen"> of {card.name}</span></summary>
        {card.code.length > 0 && (
          <pre class="code" tabIndex={0}>
            {card.code.map((line) => (
              <div class={line.is_here ? "here" : ""}>
                <span class="number">{line.is_here ? "→" : " "}{String(line.number).padStart(5)} </span>
                {line.text}
              </div>
            ))}
          </pre>
        )}
        {card.bars.length > 0 && <Bars bars={card.bars} />}
        <div class="side">
          {card.histogram && <HistogramPicture chart={card.histogram} />}
          {card.blocks && <BlocksPicture blocks={card.blocks} />}
        </div>
        <Facts title="Inputs" facts={card.inputs} />
        <Facts title="Facts" facts={card.facts} />
        {card.reproduce && <><h4>See it alone</h4><Command line={card.reproduce} /></>}
        {card.case && <p>Case file: <span class="name">{card.case}</span></p>}
        {card.missing.map((sentence) => <p class="missing">Not shown: {sentence}.</p>)}
      </details>
    </article>
  );
}

export function Facts({ title, facts }: { title: string; facts: Fact[] }) {
  if (facts.length === 0) return null;
  return (
    <>
      {title && <h4>{title}</h4>}
      <dl>{facts.map((fact) => <div><dt>{fact.name}</dt><dd>{fact.value}</dd></div>)}</dl>
    </>
  );
}

/** How many powers of ten a scale has on each side of the limit: 4, or as many as the farthest metric needs. */
export function decadesBeyond(bars: Bar[]): number {
  const ratios = bars.map(beyond).filter((ratio) => ratio !== null && ratio > 0 && ratio < Infinity) as number[];
  return Math.max(LEAST_DECADES, ...ratios.map((ratio) => Math.ceil(Math.log10(ratio) - 1e-9)));
}

/** Metrics against their limits, on a logarithmic scale of how far beyond; the limit is the middle. */
export function Bars({ bars }: { bars: Bar[] }) {
  const decades = decadesBeyond(bars);
  return (
    <table class="bars">
      <caption>
        Metrics against their limits; the mark in the middle is the limit, either end {powerOfTen(decades)} times from it
      </caption>
      <thead>
        <tr><th scope="col">metric</th><th scope="col">value</th><th scope="col">limit</th>
          <th scope="col">how far</th></tr>
      </thead>
      <tbody>{bars.map((bar) => <OneBar bar={bar} decades={decades} />)}</tbody>
    </table>
  );
}

const LEAST_DECADES = 4;

/** How many times a metric is beyond its limit; a metric that must be large is taken by its distance to 1. */
export function beyond(bar: Bar): number | null {
  if (bar.value === null) return Infinity;
  if (bar.limit === null) return null;
  const [value, limit] = bar.is_least ? [1 - bar.value, 1 - bar.limit] : [Math.abs(bar.value), bar.limit];
  return limit > 0 ? value / limit : value > 0 ? Infinity : 0;
}

function OneBar({ bar, decades }: { bar: Bar; decades: number }) {
  const ratio = beyond(bar);
  const isOver = ratio !== null && ratio > 1;
  const place = ratio === null || ratio === 0 ? -decades : Math.log10(ratio);
  const share = (Math.max(-decades, Math.min(decades, place)) + decades) / (2 * decades);
  return (
    <tr>
      <th scope="row">{bar.name}</th>
      <td class="figure">{bar.value === null ? "not finite" : shown(bar.value)}</td>
      <td class="figure">{bar.limit === null ? "-" : `${bar.is_least ? "≥" : "≤"} ${shown(bar.limit)}`}</td>
      <td>
        {ratio !== null && (
          <span class="track" aria-hidden="true">
            <span class={`fill ${isOver ? "error" : "pass"}`} style={{ width: `${(share * 100).toFixed(1)}%` }} />
            <span class="limit" />
          </span>
        )}
        <span>{ratio === null ? "no limit" : !isOver ? "within" : ratio === Infinity ? "beyond any limit" : `${shown(ratio)} times`}</span>
      </td>
    </tr>
  );
}
