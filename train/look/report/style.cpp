#include "train/look/report/style.h"

namespace nemocube::run_report {

// Colours c0 to c7 begin with those of Okabe and Ito ("Color Universal Design", 2008), which colour-blind
// people tell apart, darkened or lightened until each has a contrast of 3 to its background.
std::string_view style_sheet() {
  return R"(
:root {
  color-scheme: light dark;
  --page: #f4f6f8; --card: #ffffff; --ink: #18202a; --muted: #56616e; --line: #d8dee6; --grid: #e7ebf0;
  --c0: #0072b2; --c1: #c4500c; --c2: #00805c; --c3: #a3478a; --c4: #8a6a00; --c5: #2f8bc4; --c6: #5f6b78; --c7: #8c2020;
  --heat: #08528c; --good: #00704f; --bad: #b03a08; --on-box: #ffffff; --pill: #e8f1f8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11151a; --card: #1a2028; --ink: #e9edf2; --muted: #a3afbc; --line: #333c48; --grid: #29313b;
    --c0: #4fabee; --c1: #ff8e4a; --c2: #2cc493; --c3: #e391cb; --c4: #e2b83b; --c5: #a0d4f7; --c6: #b4bec9; --c7: #ff9a9a;
    --heat: #62b8f7; --good: #35cf9d; --bad: #ff9659; --on-box: #11151a; --pill: #1f2f3d;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
header, main, footer { max-width: 1180px; margin: 0 auto; padding: 0 16px; }
header { padding-top: 28px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 40px 0 12px; padding-top: 4px; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
.kicker { margin: 0 0 4px; color: var(--muted); font-size: .875rem; }
.pill { display: inline-block; margin: 10px 0 0; padding: 2px 12px; border-radius: 99px; background: var(--pill);
  border: 1px solid var(--line); font-size: .875rem; }
.pill::before { content: "\25CF\00A0"; color: var(--c6); }
.pill.finished::before { content: "\2714\00A0"; color: var(--good); }
.pill.under-way::before { content: "\25B6\00A0"; color: var(--c0); }
.pill.stopped::before { content: "\25A0\00A0"; color: var(--bad); }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 16px 0 0; padding: 0; list-style: none; font-size: .9rem; }
a { color: var(--c0); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(172px, 1fr)); gap: 12px; margin: 20px 0 0; padding: 0; }
.tiles div, figure, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tiles div { padding: 10px 14px; }
.tiles dt { color: var(--muted); font-size: .8125rem; }
.tiles dd { margin: 0; font-size: 1.3125rem; white-space: nowrap; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles dd small { display: block; white-space: normal; font-size: .8125rem; font-weight: 400; color: var(--muted); line-height: 1.35; }
.card { padding: 14px 18px; margin: 12px 0 0; }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 20px; margin: 0; font-size: .9375rem; }
.facts dt { color: var(--muted); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px; }
.charts .wide, .charts .absent, .charts .note { grid-column: 1 / -1; }
figure { margin: 0; padding: 14px 16px 10px; min-width: 0; }
figcaption p { margin: 0 0 6px; color: var(--muted); font-size: .875rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--muted); font-size: 13px; font-variant-numeric: tabular-nums; }
.tick.y { text-anchor: end; dominant-baseline: central; }
.tick.x { text-anchor: middle; dominant-baseline: hanging; }
.tick.start { dominant-baseline: hanging; }
.tick.name { text-anchor: end; dominant-baseline: hanging; }
.grid { stroke: var(--grid); } .axis { stroke: var(--muted); }
.grid, .axis, .moment { vector-effect: non-scaling-stroke; stroke-width: 1; }
line.moment { stroke: var(--muted); stroke-dasharray: 2 3; stroke-width: 1.5; }
.series { color: var(--c0); }
.series path { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
.series path.faint { stroke-width: 1; stroke-opacity: .38; }
.series path.dashed { stroke-dasharray: 6 4; } .series path.dotted { stroke-dasharray: 2 4; }
.dot { fill: currentColor; } .spot { fill: transparent; }
.dot:hover, .spot:hover { fill: var(--ink); }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
.part { fill: currentColor; } .part:hover, .heat rect:hover { stroke: var(--ink); }
.heat rect { fill: var(--heat); }
.forward { fill: var(--c0); } .backward { fill: var(--c1); } .odd { fill-opacity: .4; }
.forward:hover, .backward:hover { stroke: var(--ink); stroke-width: 2; }
svg text.box { fill: var(--on-box); text-anchor: middle; dominant-baseline: central; pointer-events: none; }
svg text.box.odd { fill: var(--ink); fill-opacity: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 6px; padding: 0; list-style: none; font-size: .875rem; }
.legend li { overflow-wrap: anywhere; min-width: 0; }
.sign { display: inline-block; width: 20px; height: 0; margin-right: 7px; vertical-align: middle; border-top: 3px solid currentColor; }
.sign.dashed { border-top-style: dashed; } .sign.dotted { border-top-style: dotted; }
.sign.box { width: 12px; height: 12px; border: 0; border-radius: 2px; background: currentColor; }
.sign.mark { width: 0; height: 16px; margin: 0 10px 0 6px; border-top: 0; border-left: 2px dotted var(--muted); }
.scale { display: flex; align-items: center; gap: 8px; margin: 0 0 6px; font-size: .875rem; color: var(--muted); }
.shades { width: 140px; height: 10px; border-radius: 2px; border: 1px solid var(--line);
  background: linear-gradient(to right, transparent, var(--heat)); }
details { margin-top: 8px; font-size: .875rem; }
summary { cursor: pointer; color: var(--muted); width: max-content; max-width: 100%; }
summary:hover { color: var(--ink); }
.scroll { overflow: auto; max-height: 420px; border: 1px solid var(--line); border-radius: 8px; margin-top: 6px; background: var(--card); }
:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
td { white-space: nowrap; }
th, td { padding: 5px 12px; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
th { position: sticky; top: 0; background: var(--card); color: var(--muted); font-weight: 600; }
th.text, td.text { text-align: left; overflow-wrap: anywhere; white-space: normal; }
td.text { min-width: 9em; }
tr:last-child td { border-bottom: 0; }
#differences td:first-child { white-space: nowrap; }
td.right, td.wrong { text-align: left; font-weight: 600; }
.right { color: var(--good); } .wrong { color: var(--bad); }
pre { margin: 0; padding: 12px 16px; font: .8125rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }
.absent, .note { margin: 0; color: var(--muted); font-size: .9375rem; overflow-wrap: anywhere; }
.charts .card { margin: 0; }
.charts .card .note { margin-bottom: 8px; }
header .scroll { margin-top: 16px; }
.card + .charts, .absent + .charts, .note + .charts { margin-top: 16px; }
footer { color: var(--muted); font-size: .8125rem; padding-top: 32px; padding-bottom: 32px; }
@media (max-width: 640px) {
  header { padding-top: 18px; }
  h1 { font-size: 1.375rem; }
  figure { padding: 12px 10px 8px; }
  .card { padding: 12px; }
  .facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .facts dd { margin-bottom: 8px; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  .tiles dd { font-size: 1.125rem; }
  svg text { font-size: 19px; }
  th, td { padding: 5px 8px; }
  td.text { min-width: 5.5em; }
  #differences td:first-child { white-space: normal; }
  .dot { r: 5px; } .wide .dot { r: 8px; }
  svg.wide text { font-size: 30px; }
  svg.wide text.box { font-size: 20px; }
}
@media print {
  :root { --page: #ffffff; }
  body { font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  nav, figure details:not([open]) { display: none; }
  svg text { font-size: 16px; }
  svg.wide text { font-size: 20px; }
  header, main, footer { max-width: none; padding-left: 0; padding-right: 0; }
  figure, .tiles div, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .charts { grid-template-columns: 1fr 1fr; }
  .scroll { max-height: none; overflow: visible; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
}
)";
}

}  // namespace nemocube::run_report
