#!/bin/sh
# Run by LocalStack when it is ready. An incomplete upload that a killed process left costs money on a real store,
# so the bucket has the rule that every production bucket should have.
set -eu
bucket=tiered-local
awslocal s3api create-bucket --bucket "$bucket" || awslocal s3api head-bucket --bucket "$bucket"
awslocal s3api put-bucket-lifecycle-configuration --bucket "$bucket" --lifecycle-configuration '{
  "Rules": [{"ID": "abort-incomplete-uploads", "Status": "Enabled", "Filter": {"Prefix": ""},
             "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}}]}'
