// Elements, formats, dialogs.  Text is set as text alone: what a script printed stays text.

export function el(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null).map((child) => child instanceof Node ? child : String(child)));
  return made;
}

export const text = (node, said) => { if (node.textContent !== said) node.textContent = said; };

const pad = (value) => String(value).padStart(2, "0");

export function duration(seconds) {
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  if (whole >= 172800) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  if (hours) return `${hours}:${pad(minutes)}:${pad(whole % 60)} h`;
  return minutes ? `${minutes}:${pad(whole % 60)} min` : `${whole} s`;
}

export function clock(at, withDay = false) {
  const when = new Date(at * 1000), time = `${pad(when.getHours())}:${pad(when.getMinutes())}:${pad(when.getSeconds())}`;
  return withDay ? `${when.getFullYear()}-${pad(when.getMonth() + 1)}-${pad(when.getDate())} ${time}` : time;
}

export const pause = (seconds) => seconds == null ? "\u2026" : seconds < 0.0005 ? "none" : `${seconds.toFixed(3)} s`;
export const short = (value, digits = 4) => value == null ? "\u2013" : String(Number(value.toPrecision(digits)));
export const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

export const card = (title, ...children) => el("section", {class: "card"}, el("h2", {}, title), ...children);

// A table whose rows are replaced; columns are [title, class].
export function table(columns, empty, label, tall = false) {
  const body = el("tbody"), none = el("p", {class: "quiet"}, empty);
  const head = el("thead", {}, el("tr", {}, columns.map(([title, kind]) => el("th", {class: kind, scope: "col"}, title))));
  const shown = el("div", {class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region", "aria-label": label}, el("table", {}, head, body), none);
  return {shown, fill(rows) {
    body.replaceChildren(...rows.map((row) => el("tr", {}, row.map((cell, at) => el("td", {class: columns[at][1]}, cell)))));
    none.hidden = rows.length > 0;
    body.parentElement.hidden = rows.length === 0;
  }};
}

export function dialog(title, children, buttons) {
  const made = el("dialog", {"aria-label": title}, el("h2", {}, title), ...children, el("div", {class: "row"}, buttons));
  document.body.append(made);
  made.addEventListener("close", () => made.remove());
  made.showModal();
  return made;
}

export function confirmed(title, lines, verb, isDangerous = false) {
  return new Promise((settle) => {
    const answer = (value) => { settle(value); box.close(); };
    const box = dialog(title, lines.map((line) => el("p", {}, line)), [
      el("button", {type: "button", onclick: () => answer(false)}, "Cancel"),
      el("button", {type: "button", class: isDangerous ? "danger" : "main", onclick: () => answer(true)}, verb)]);
    box.addEventListener("close", () => settle(false));
  });
}

export function tell(title, ...lines) {
  const box = dialog(title, lines.map((line) => line instanceof Node ? line : el("p", {}, line)), [
    el("button", {type: "button", class: "main", onclick: () => box.close()}, "Close")]);
  return box;
}
