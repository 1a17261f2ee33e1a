"use strict";
// Answers what the page asks of the network: in a worker, so that nothing freezes, or in the page where workers are not
// allowed. An image's answer comes at once; accuracy is counted image by image, heads learn step by step (learning.js), and
// either is given up for a newer question.

const FIRST_COUNTED = 20; // test images whose accuracy is said before the others are counted

/** A function that takes messages {start}, {classify}, {count} and {learn}; it answers through `reply`. */
function answerer(reply) {
  let network, grid, size, test, kept = [], keptKey = null, newestCount = 0, newestLesson = 0;
  const letNewerQuestionsIn = () => new Promise((resume) => setTimeout(resume));

  /** What `forward` returns; of a page without a network attention alone.
      @type {(bytes: Bytes, question: { layers: Layer[], changes: Changes }) => Partial<Answer>} */
  function run(bytes, { layers, changes }) {
    if (changes.key !== keptKey) [kept, keptKey] = [[], changes.key];
    if (network) return forward(network, layers, grid, bytes, changes, kept);
    return { attention: layers.map((layer, l) => (kept[l] ??= layerAttention(layer, null, grid, changes, l)).maps) };
  }

  function classify(question) {
    const { attention, ...rest } = run(question.bytes, question);
    const squares = windows(question.bytes, size, size, grid);
    const shifted = attention.map((heads) => heads.map((head) => shiftedImage(squares, head, size, grid)));
    reply({ ...rest, shifted, id: question.id });
  }

  async function count(question) {
    newestCount = question.id;
    let right = 0;
    const [bytes, of] = [test.pixels.length / test.labels.length, test.labels.length];
    for (const [n, label] of test.labels.entries()) {
      if (n === FIRST_COUNTED) reply({ right, of: n, id: question.id, isFirst: true });
      const logits = run(test.pixels.subarray(n * bytes, (n + 1) * bytes), question).logits.at(-1);
      right += Number(logits.indexOf(Math.max(...logits)) === label);
      await letNewerQuestionsIn();
      if (newestCount !== question.id) return;
    }
    reply({ right, of, id: question.id });
  }

  async function learn({ id, heads }) {
    newestLesson = id;
    const random = randomNumbers(LEARNING.seed), entries = entriesOf(newTeacher(random));
    const student = newStudent(heads, random), update = adam(student);
    for (let step = 0; step <= LEARNING.steps && newestLesson === id; step++) {
      const { error, gradients } = errorAndGradients(student, entries), [centre, spread] = [student.centre, student.spread];
      if (step % LEARNING.shown === 0) {
        reply({ id, step, error, centre: Array.from(centre), spread: Array.from(spread), isFirst: step < LEARNING.steps });
        await letNewerQuestionsIn();
      }
      update(gradients, step);
    }
  }

  return (message) => {
    if (message.start) {
      ({ grid, size, test } = message.start);
      network = message.start.network && withWeights(message.start.network, message.start.weights);
      keptKey = newestCount = newestLesson = null;
    } else if (message.classify) classify(message.classify);
    else if (message.count) count(message.count);
    else learn(message.learn);
  };
}

if (typeof document === "undefined") {
  const answer = answerer((reply) => postMessage(reply));
  onmessage = (event) => answer(event.data);
}
