#!/bin/sh
# What runs on every change: is the policy valid, and does it do what the tests
# say? Needs dispatchctl on the PATH, and no cluster.
set -eu
cd "$(dirname "$0")"
dispatchctl policy lint policy.yaml policy.test.yaml
dispatchctl policy test policy.yaml
