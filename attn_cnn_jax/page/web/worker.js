"use strict";
// Answers what the page asks of the network: in a worker, so that nothing freezes, or in the page where workers are not
// allowed. A picture's answer comes at once; accuracy is counted picture by picture, and given up for a newer question.

/** A function that takes messages {start}, {classify} and {count}; it answers through `reply`. */
function answerer(reply) {
  let network, grid, test, kept = [], keptKey = null, newestCount = 0;

  function run(bytes, { layers, changes }) {
    if (changes.key !== keptKey) [kept, keptKey] = [[], changes.key];
    return forward(network, layers, grid, bytes, changes, kept);
  }

  function classify(question) {
    const started = performance.now();
    const found = run(question.bytes, question);
    const { off } = question.changes;
    const attention = found.attention.map((heads, l) => meanOverHeads(heads.filter((_, h) => !off.has(`${l},${h}`))));
    const milliseconds = performance.now() - started;
    reply({ ...found, attention, milliseconds, id: question.id, kind: "classified" });
  }

  async function count(question) {
    newestCount = question.id;
    let right = 0;
    const size = test.pixels.length / test.labels.length;
    for (const [n, label] of test.labels.entries()) {
      const logits = run(test.pixels.subarray(n * size, (n + 1) * size), question).logits.at(-1);
      right += Number(logits.indexOf(Math.max(...logits)) === label);
      await new Promise((resume) => setTimeout(resume)); // lets newer questions in
      if (newestCount !== question.id) return;
    }
    reply({ right, of: test.labels.length, id: question.id, kind: "counted" });
  }

  return (message) => {
    if (message.start) {
      ({ grid, test } = message.start);
      network = withWeights(message.start.network, message.start.weights);
    } else if (message.classify) classify(message.classify);
    else count(message.count);
  };
}

/** Attention of a layer, queries by keys, averaged over heads; null of none. */
function meanOverHeads(attention) {
  if (attention.length === 0) return null;
  const mean = new Float32Array(attention[0].length);
  for (const head of attention) {
    for (let n = 0; n < mean.length; n++) mean[n] += head[n] / attention.length;
  }
  return mean;
}

if (typeof document === "undefined") {
  const answer = answerer((reply) => postMessage(reply));
  onmessage = (event) => answer(event.data);
}
