// A run that has ended as it was at a moment: what the view tells of the time until then.

export function until(view, moment) {
  const been = (one) => one.at <= moment, count = view.steps.at.findLastIndex((at) => at <= moment) + 1;
  const steps = Object.fromEntries(Object.entries(view.steps).map(([name, column]) => [name, Array.isArray(column) ? column.slice(0, count) : column]));
  const size = view.size.filter(([at]) => at <= moment), [, training, wanted] = size.at(-1) ?? [0, 0, null];
  const resizes = view.resizes.filter(been), checkpoints = view.checkpoints.filter(been), kept = checkpoints.findLast((one) => one.checkpoint);
  const lanes = view.lanes.filter((lane) => lane.spans[0][1] <= moment).map((lane) => ({...lane, how: lane.spans.at(-1)[2] <= moment ? lane.how : "",
    spans: lane.spans.filter(([, since]) => since <= moment).map(([state, since, end]) => [state, since, Math.min(end ?? moment, moment)])}));
  const headline = {...view.headline, state: "replayed", step: steps.step.at(-1) ?? 0, loss: steps.loss.at(-1) ?? null, samples_per_s: steps.samples_per_s.at(-1) ?? null,
    size: training, target_replicas: wanted, eta_s: null, committed_at: steps.at.at(-1) ?? null, doubts: [], warnings: [], checkpoint_failure: null, is_resumable: false,
    steps_lost: resizes.reduce((sum, one) => sum + one.steps_lost, 0), checkpoint: kept ? {...kept, name: kept.checkpoint} : null};
  return {...view, headline, steps, size, resizes, checkpoints, lanes, pauses: pausesOf(resizes), ended: moment,
    events: view.events.filter(been), decisions: view.decisions.filter(been)};
}

function pausesOf(resizes) {
  const causes = Map.groupBy(resizes, (one) => one.kind), pauses = (some) => some.map((one) => one.pause_s ?? 0);
  return [...causes].map(([cause, some]) => ({cause, number: some.length, pause_s: pauses(some).reduce((sum, one) => sum + one, 0), longest_s: Math.max(...pauses(some)),
    steps_lost: some.reduce((sum, one) => sum + one.steps_lost, 0)}));
}
