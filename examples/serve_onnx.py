"""
Serve an exported model over HTTP
=================================

With onnxruntime and NumPy alone: neither discernel nor torch is installed. Where the model is made::

    from discernel import DiscernelClassifier, export_onnx
    export_onnx(DiscernelClassifier().fit(X, y), "model.onnx")

Where it is served::

    python serve_onnx.py model.onnx 8000
    curl -d '{"X": [[5.1, 3.5, 1.4, 0.2]]}' localhost:8000
    {"label": ["setosa"], "probabilities": [[0.97, 0.02, 0.01]]}
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(string)": object}


def answer(session: onnxruntime.InferenceSession, request: dict) -> dict:
    """Return the outputs of the model by name, given its inputs by name."""
    inputs = {each.name: np.array(request[each.name], TYPES[each.type]) for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    return {name: value.tolist() for name, value in zip(names, session.run(None, inputs), strict=True)}


def server(path: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the model at `path`."""
    session = onnxruntime.InferenceSession(path)  # its `run` may be called by many threads at a time

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code, said = 200, answer(session, request)
            except Exception as error:
                code, said = 400, {"error": f"{type(error).__name__}: {error}"}
            body = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python serve_onnx.py MODEL.onnx PORT")
    server(sys.argv[1], int(sys.argv[2])).serve_forever()
