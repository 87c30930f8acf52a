const url = "{url}";
const group = "try-" + process.pid, waiting = new Map();
let socket, session, last = 0, ackId = 0, number = 0, newest = 0, missing = 0, twice = 0;
const send = (message) => socket.readyState === 1 && socket.send(JSON.stringify(message));
const request = (message) => {
  waiting.set(++ackId, { ...message, group, ackId });
  send(waiting.get(ackId));
};
const connect = () => {
  const again = session && "&awps_connection_id=" + session.connectionId + "&awps_reconnection_token=" + session.reconnectionToken;
  socket = new WebSocket(url + (again || ""), "json.reliable.webpubsub.azure.v1");
  socket.onopen = () => waiting.forEach(send);
  socket.onmessage = ({ data }) => receive(JSON.parse(data));
  let isOver = false;
  const comeBack = () => {
    if (isOver) return;
    isOver = true;
    console.log("no socket: coming back");
    setTimeout(connect, 500);
  };
  // Before version 24, Node tells of a socket that could not connect by this event alone.
  socket.onerror = comeBack;
  socket.onclose = ({ code }) => {
    if (code === 1008) throw new Error("the session is over");
    comeBack();
  };
};
const receive = (message) => {
  if (message.event === "connected") session = message;
  if (message.type === "ack" && (message.success || message.error.name === "Duplicate")) waiting.delete(message.ackId);
  if (message.type !== "message" || message.sequenceId <= last) return;
  last = message.sequenceId;
  send({ type: "sequenceAck", sequenceId: last });
  if (message.data <= newest) twice++;
  else missing += message.data - newest - 1;
  newest = Math.max(newest, message.data);
  console.log(message.data + " came back; missing: " + missing + ", twice: " + twice);
};
connect();
request({ type: "joinGroup" });
setInterval(() => request({ type: "sendToGroup", dataType: "json", data: ++number }), 500);
