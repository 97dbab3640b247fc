package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// s3Store is a bucket and a prefix. Retries of a request are the SDK's own.
type s3Store struct {
	within
	client *s3.Client
	bucket string
}

func openS3(ctx context.Context, rest string) (Store, error) {
	bucket, key, _ := strings.Cut(rest, "/")
	if strings.Contains(bucket, "@") {
		return nil, errors.New("objstore: an s3:// location must not hold credentials; use the AWS environment or configuration files")
	}
	if bucket == "" || strings.ContainsAny(rest, "?#") {
		return nil, fmt.Errorf("objstore: s3 location of bucket %q is not of the form s3://bucket/prefix", bucket)
	}
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("objstore: AWS configuration: %w", err)
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.DisableLogOutputChecksumValidationSkipped = true
		if o.BaseEndpoint == nil {
			return
		}
		// Stores other than S3 seldom resolve bucket.host, and know no regions.
		o.UsePathStyle = !strings.Contains(*o.BaseEndpoint, ".amazonaws.com")
		if o.Region == "" {
			o.Region = "us-east-1"
		}
	})
	if client.Options().Region == "" {
		return nil, fmt.Errorf("objstore: no AWS region for s3://%s; set AWS_REGION or the profile's region", bucket)
	}
	return &s3Store{newWithin(key), client, bucket}, nil
}

func (s *s3Store) Location() string {
	return "s3://" + s.bucket + "/" + s.prefix + s.only
}

func (s *s3Store) url(key string) string { return "s3://" + s.bucket + "/" + s.prefix + key }

func (s *s3Store) List(ctx context.Context, prefix string) ([]Object, error) {
	full, ok := s.ask(prefix)
	if !ok {
		return nil, nil
	}
	var out []Object
	pages := s3.NewListObjectsV2Paginator(s.client, &s3.ListObjectsV2Input{
		Bucket: aws.String(s.bucket), Prefix: aws.String(full),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, s.explain("list", prefix, err)
		}
		for _, o := range page.Contents {
			if key, ok := s.key(aws.ToString(o.Key)); ok {
				out = append(out, Object{
					Key: key, Size: aws.ToInt64(o.Size), ETag: cleanTag(aws.ToString(o.ETag)), Modified: aws.ToTime(o.LastModified).UTC(),
				})
			}
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out, nil
}

func (s *s3Store) Get(ctx context.Context, key, etag string) (io.ReadCloser, Object, error) {
	return getRemote(ctx, s, key, etag)
}

func (s *s3Store) Fetch(ctx context.Context, key, etag string) (File, error) {
	return fetchRemote(ctx, s, key, etag)
}

func (s *s3Store) openAt(ctx context.Context, key, etag string, offset int64) (io.ReadCloser, Object, error) {
	in := &s3.GetObjectInput{Bucket: aws.String(s.bucket), Key: aws.String(s.prefix + key)}
	if etag != "" {
		in.IfMatch = aws.String(`"` + etag + `"`)
	}
	var part []func(*s3.Options)
	if offset > 0 {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", offset))
		// Some servers answer a part with the checksum of the whole.
		part = append(part, func(o *s3.Options) { o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired })
	}
	out, err := s.client.GetObject(ctx, in, part...)
	if err != nil {
		return nil, Object{}, s.explain("get", key, err)
	}
	return out.Body, Object{
		Key: key, Size: aws.ToInt64(out.ContentLength), ETag: cleanTag(aws.ToString(out.ETag)), Modified: aws.ToTime(out.LastModified).UTC(),
	}, nil
}

func (s *s3Store) Put(ctx context.Context, key string, body io.Reader) error {
	if err := checkKey(key); err != nil {
		return err
	}
	whole, done, err := rewindable(ctx, body)
	if err != nil {
		return fmt.Errorf("objstore: write %s: %w", s.url(key), err)
	}
	defer done()
	_, err = s.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: aws.String(s.bucket), Key: aws.String(s.prefix + key), Body: whole,
	})
	if err != nil {
		return s.explain("put", key, err)
	}
	return nil
}

// explain turns a service error into what, where and what to do. The SDK's text
// holds request ids and codes, never keys.
func (s *s3Store) explain(verb, key string, err error) error {
	where := s.url(key)
	var resp *awshttp.ResponseError
	var api smithy.APIError
	status, code := 0, ""
	if errors.As(err, &resp) {
		status = resp.HTTPStatusCode()
	}
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	switch {
	case code == "NoSuchBucket":
		return fmt.Errorf("objstore: %s %s: there is no bucket %q: %w", verb, where, s.bucket, ErrNotFound)
	case code == "NoSuchKey" || code == "NotFound" || status == http.StatusNotFound:
		return fmt.Errorf("objstore: %s %s: %w", verb, where, ErrNotFound)
	case status == http.StatusPreconditionFailed:
		return fmt.Errorf("objstore: %s %s: %w", verb, where, ErrChanged)
	case status == http.StatusForbidden:
		return fmt.Errorf("objstore: %s %s: access denied (%s); the credentials need s3:ListBucket and s3:GetObject (s3:PutObject to write) there: %w", verb, where, code, err)
	case status == http.StatusMovedPermanently || code == "AuthorizationHeaderMalformed":
		return fmt.Errorf("objstore: %s %s: the bucket is in another region; set AWS_REGION to it: %w", verb, where, err)
	}
	return fmt.Errorf("objstore: %s %s: %w", verb, where, err)
}
